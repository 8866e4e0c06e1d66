"""Writes tests/golden/samples.json: questions with contexts as the tokenizers library of Hugging Face joins them, with
two small tokenizers that it trains here (BERT's WordPiece, and byte-level BPE as RoBERTa has it). Run with tokenizers:

    python3 tests/golden/samples.py"""
import json
import os

import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
CONTEXTS = ["It was Ada Lovelace (1815-1852), who wrote the first programme; she lived in London.",
            "The Rhône is 813 km long, and flows from the Alps  to the sea.\nIts source is a glacier.",
            "Prices: $4.50 in 2019, $5 (or 6!) in 2020 -- about 11% more; naïve estimates said 30%.",
            "北京 is the capital of China; Tokyo, of Japan. Übung macht den Meister."]
QUESTIONS = [("Who wrote it?", 0, "Ada Lovelace"), ("When was she born?", 0, "1815"), ("Where did she live?", 0, "London"),
             ("How long is it?", 1, "813 km"), ("What is its source?", 1, "a glacier"), ("Where to?", 1, "the sea"),
             ("How much in 2019?", 2, "$4.50"), ("How much more?", 2, "11%"), ("What was said?", 2, "30%"),
             ("What is the capital?", 3, "北京"), ("What of Japan?", 3, "Tokyo"), ("Who becomes a master?", 3, "Übung"),
             ("Is there an answer?", 0, None), ("", 2, "more")]


def trained(kind):
    if kind == "wordpiece":
        t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        t.normalizer = normalizers.BertNormalizer(lowercase=True)
        t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        t.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=180, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
                                            show_progress=False)
    else:
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<s>", "<pad>", "</s>"], show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(CONTEXTS + [q for q, _, _ in QUESTIONS], trainer)
    if kind == "wordpiece":
        t.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", t.token_to_id("[CLS]")), ("[SEP]", t.token_to_id("[SEP]"))])
    else:
        t.post_processor = processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")))
    return t


def sample(t, question, context, answer):
    """Ids, segments and, of the context's tokens, the bytes; the span of the answer."""
    e = t.encode(question, context)
    start = context.index(answer) if answer else -1
    end = start + len(answer) if answer else -1
    offsets, inside = [], []
    for i, (a, b) in enumerate(e.offsets):
        own = e.sequence_ids[i] == 1
        while own and a < b and context[a].isspace():
            a += 1
        offsets.append([len(context[:a].encode()), len(context[:b].encode())] if own and b > a else [0, 0])
        if own and a < end and b > start:
            inside.append(i)
    return {"question": question, "context": context, "start": start, "answer": answer, "ids": e.ids, "types": e.type_ids,
            "offsets": offsets, "span": [inside[0], inside[-1]] if inside else [0, 0]}


def main():
    result = {"source": f"tests/golden/samples.py with tokenizers {tokenizers.__version__}"}
    for kind in ("wordpiece", "bytes"):
        t = trained(kind)
        result[kind] = {"tokenizer": t.to_str(),
                        "samples": [sample(t, q, CONTEXTS[c], a) for q, c, a in QUESTIONS]}
    with open(os.path.join(HERE, "samples.json"), "w", encoding="utf-8") as file:
        json.dump(result, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
