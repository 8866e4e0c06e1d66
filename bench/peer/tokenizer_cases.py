"""Small tokenizers of every kind that Twinspeed reads, and what Hugging Face's tokenizers library makes of texts with them.

    python3 bench/peer/tokenizer_cases.py tests/golden/tokenizers.json    # the golden file of the suite `tokens`
    python3 bench/peer/tokenizer_cases.py --compare TOK tokenizer.json text.txt  # TOK: see below

They are trained on the sentences below, which were written for this purpose. Needs the packages tokenizers and
sentencepiece. --compare prints how many tokens are other than the library's, given those of a token file (llm.c's, as
`twinspeed convert tokens --tokenizer` writes it), whose text was one document."""

import json
import struct
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
    "The ship's captain didn't say where they'd been; we'll see, I'm sure. It's 1,234.56 miles, isn't it?",
    "Der Kapitän grüßte über die Straße hinweg: »Schönes Wetter heute, nicht wahr?« Äpfel, Öfen und Übermut.",
    "Le garçon naïf a mangé une crêpe près de l'hôtel où l'été fut très long; ça coûte 12 €.",
    "El niño corrió mañana por la montaña. ¿Dónde está? ¡Aquí! Año 2024, nº 5.",
    "Старый капитан долго смотрел на море, потом тихо сказал: «Завтра будет шторм», и ушёл.",
    "Ο γέρος καπετάνιος κοίταξε τη θάλασσα και είπε πως αύριο θα έχει καταιγίδα.",
    "老船长看着大海，说明天会有风暴。我们在港口等了三天。",
    "船長は海を見て、明日は嵐だと言った。ガラスの船と、カタカナのテスト。",
    "늙은 선장은 바다를 보며 내일 폭풍이 올 것이라고 말했다.",
    "نظر القبطان العجوز إلى البحر وقال إن العاصفة ستأتي غدًا.",
    "הקפטן הזקן הביט בים ואמר שמחר תהיה סערה.",
    "बूढ़े कप्तान ने समुद्र को देखा और कहा कि कल तूफ़ान आएगा।",
    "กัปตันเฒ่ามองทะเลแล้วบอกว่าพรุ่งนี้จะมีพายุ",
    "for (int i = 0; i < 10; i++) {\n\tsum += a[i] * 0x1F;  // tabs and  double  spaces\n}\n",
    "def f(x):\n    return x**2 if x >= 0 else -x   # four spaces\n\n\n",
]
EDGES = [
    "",
    " ",
    "  two  leading and trailing  ",
    "\n\n \t x\r\n",
    "emoji 👩‍👩‍👧 flags 🇩🇪 skin 👍🏽 and ☃ ✈️",
    "combining é ö ñ ạ̈ ﬁ ﬂ ² ½ Ⅷ ㎏ Å ｆｕｌｌ",
    "non\u00a0breaking\u3000ideographic\u2009thin\u200bzero\u2028line\u0085next\u180evowel",
    "<|endoftext|>The end<|endoftext|>   <s>no</s> [MASK] x[MASK]y <unk>",
    "ALL CAPS İstanbul ǅ ẞ ΑΣ 'S 'Ll ſ 's 'RE",
    "0123456789 ٠١٢٣ १२३ 四五 1e-5 3.14",
    "\u0001\u0002 control \u007f\u0080 \ufeff bom \U0001F9FF \U00020000",
    "▁metaspace▁ already",
    "aaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbb",
]


def trained(tokenizer, trainer):
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def bpe(vocabulary=420, special=("<|endoftext|>",), alphabet=True, **options):
    return trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
        **options,
    )


def gpt2():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return trained(t, bpe())


def llama3():
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    trained(t, bpe(special=("<|begin_of_text|>", "<|end_of_text|>")))
    t.post_processor = processors.Sequence(
        [
            processors.ByteLevel(),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))]
            ),
        ]
    )
    t.add_tokens([AddedToken("[MASK]", lstrip=True, normalized=False, single_word=True)])
    return t


def qwen2():
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    )
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    return trained(t, bpe(360))


def llama2():
    """Byte fallback without a pre-tokenizer: the whole text is one word."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # for the training alone
    trained(t, bpe(620, special, False, limit_alphabet=120))
    made = json.loads(t.to_str())
    made["pre_tokenizer"] = None
    made["added_tokens"] = made["added_tokens"][:3]
    t = Tokenizer.from_str(json.dumps(made))
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return t


def suffixed():
    """Words end with a mark; unknown characters are not fused."""
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", continuing_subword_prefix=""))
    t.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents(), normalizers.Strip()]
    )
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()]
    )
    trained(t, bpe(300, ("<unk>",), False, end_of_word_suffix="</w>", limit_alphabet=60))
    t.add_tokens(["captain", AddedToken("sEA", normalized=True, single_word=True, rstrip=True)])
    return t


def unigram():
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    t.decoder = decoders.Metaspace(prepend_scheme="first")
    trained(
        t,
        trainers.UnigramTrainer(
            vocab_size=300, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
        ),
    )
    return t


def sentencepiece_unigram():
    """As T5 and XLM-R: sentencepiece's own normalization, in its compiled form."""
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 3),
        model_writer=model,
        vocab_size=550,
        character_coverage=0.98,
        normalization_rule_name="nmt_nfkc",
        byte_fallback=True,
        minloglevel=2,
    )
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    proto.ParseFromString(model.getvalue())
    t = Tokenizer(models.Unigram([(p.piece, p.score) for p in proto.pieces], unk_id=0, byte_fallback=True))
    t.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    return t


def contiguous():
    t = Tokenizer(models.BPE(unk_token="?"))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex(r"[aeiou\d]+"), "contiguous"),
            pre_tokenizers.Split(Regex(r"[.,]"), "merged_with_previous"),
            pre_tokenizers.Split("-", "removed"),
            pre_tokenizers.Split(Regex(r"[a-z]+"), "merged_with_next", invert=True),
            pre_tokenizers.Digits(individual_digits=False),
        ]
    )
    return trained(t, bpe(240, ("?",), False, limit_alphabet=80))


def case(name, tokenizer):
    texts = []
    for text in TEXTS + EDGES + ["\n".join(TEXTS)]:
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        texts.append(
            {
                "text": text,
                "ids": plain,
                "special": tokenizer.encode(text, add_special_tokens=True).ids,
                "decoded": tokenizer.decode(plain, skip_special_tokens=True),
            }
        )
    return {"name": name, "tokenizer": json.loads(tokenizer.to_str()), "texts": texts}


def compare(tokens, tokenizer, text):
    with open(tokens, "rb") as f:
        header = struct.unpack("<256i", f.read(1024))
        size = 2 if header[0] == 20240520 else 4
        ours = struct.unpack("<%d%s" % (header[2], "H" if size == 2 else "I"), f.read(size * header[2]))
    theirs = Tokenizer.from_file(tokenizer).encode(open(text, encoding="utf-8", newline="").read(), add_special_tokens=False).ids
    ours = list(ours[: len(theirs)]) if len(ours) - len(theirs) in (0, 1) else list(ours)
    print("%d tokens, the library %d, %s" % (len(ours), len(theirs), "equal" if ours == theirs else "OTHERS"))
    sys.exit(ours != theirs)


if sys.argv[1] == "--compare":
    compare(*sys.argv[2:])
makers = [gpt2, llama3, qwen2, llama2, suffixed, unigram, contiguous]
cases = [case(m.__name__, m()) for m in makers]
if len(sys.argv) > 2:  # the compiled normalization alone has 300 KiB: not for the golden file
    cases = [case("sentencepiece_unigram", sentencepiece_unigram())]
document = {
    "source": "tokenizers %s (Apache-2.0) by bench/peer/tokenizer_cases.py; texts of our own" % tokenizers.__version__,
    "cases": cases,
}
with open(sys.argv[1], "w", encoding="utf-8") as out:
    json.dump(document, out, ensure_ascii=False, separators=(",", ":"))
    out.write("\n")
