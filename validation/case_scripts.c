/* What rows of measured runs leave out and the scripts say that their sources publish beside them. */
#include <string.h>

#include "validation/case_fields.h"

/* BigScience's runs of ZeRO-3 under Megatron 1.1.5 (its repository, experiments/gpt2-meg-ds-zero): every script of the
 * folder has --partition-activations and, but where experiments/gpt2.md says that it was taken out,
 * --checkpoint-in-cpu. */
int tws_case_partitions_checkpoints(const cJSON *row) {
  return strstr(tws_case_text(row, "source", "title"), "BigScience GPT2 experiments on Jean Zay") &&
         strstr(tws_case_text(row, "hardware", "framework"), "Megatron") &&
         tws_case_number(row, "parallel", "zero_stage") == 3;
}

int tws_case_offloads_checkpoints(const cJSON *row) {
  const char *stated = tws_case_text(row, "parallel", "partition_activations_cpu");
  const char *place = tws_case_text(row, "source", "locator");
  const int taken_out = strstr(place, "line 432 ") || strstr(place, "line 433 "); /* "removed --checkpoint-in-cpu" */
  return tws_case_partitions_checkpoints(row) && *stated != 'N' && !taken_out;
}

/* DeepSpeed's autotuning examples (DeepSpeedExamples, training/autotuning/hf) classify texts with BERT and DistilBERT;
 * its fastest BERT was held against PyTorch's in answering SQuAD's questions. */
static int answers_questions(const cJSON *row) {
  return strncmp(tws_case_text(row, "model", "name"), "BERT", 4) == 0 &&
         strcmp(tws_case_text(row, "hardware", "framework"), "pytorch") == 0 &&
         strstr(tws_case_text(row, NULL, "notes"), "SQuAD");
}

int tws_case_encoder(const cJSON *row) {
  const char *name = tws_case_text(row, "model", "name");
  if (answers_questions(row) || tws_case_is_bert_test(row)) return 1;
  return strstr(tws_case_text(row, "hardware", "framework"), "HF Trainer") &&
         (strncmp(name, "DistilBERT", 10) == 0 || strncmp(name, "BERT", 4) == 0);
}

void tws_case_write_encoder(const cJSON *row, tws_text *text) {
  const long long layers = (long long)tws_case_number(row, "model", "layers");
  const long long hidden = (long long)tws_case_number(row, "model", "hidden");
  const long long heads = (long long)tws_case_number(row, "model", "heads");
  const long long ffn = (long long)tws_case_number(row, "model", "ffn");
  const long long vocabulary = (long long)tws_case_vocabulary(row);
  if (strncmp(tws_case_text(row, "model", "name"), "Distil", 6) == 0)
    tws_text_add(text,
                 "{\"model_type\":\"distilbert\",\"architectures\":[\"DistilBertForSequenceClassification\"],"
                 "\"n_layers\":%lld,\"dim\":%lld,\"n_heads\":%lld,\"hidden_dim\":%lld,\"vocab_size\":%lld,"
                 "\"max_position_embeddings\":512}",
                 layers, hidden, heads, ffn, vocabulary);
  else
    tws_text_add(text,
                 "{\"model_type\":\"bert\",\"architectures\":[\"%s\"],"
                 "\"num_hidden_layers\":%lld,\"hidden_size\":%lld,\"num_attention_heads\":%lld,"
                 "\"intermediate_size\":%lld,\"vocab_size\":%lld,\"max_position_embeddings\":512}",
                 answers_questions(row)       ? "BertForQuestionAnswering"
                 : tws_case_is_bert_test(row) ? "BertForPreTraining"
                                              : "BertForSequenceClassification",
                 layers, hidden, heads, ffn, vocabulary);
}

/* BigScience's figures of two nodes (experiments/tr3m-1B3.md) were read in the shell that the allocation opens, which
 * is on the first. There pipelines have their first stages: what was read grows with the micro batch by less than the
 * logits of the last stage alone. */
int tws_case_watches_first_node(const cJSON *row) {
  return strstr(tws_case_text(row, "source", "title"), "BigScience 1.3B tuning") != NULL;
}

/* Its scripts print max_memory_reserved, the ones of ZeRO-2 too (bench_decompose.py), of which rows say only "GiB". */
int tws_case_reads_reserved(const cJSON *row) {
  return strstr(tws_case_text(row, "source", "title"), "when-to-upgrade-gpus") != NULL;
}

/* Llama 3 405B (2407.21783, section 3.3.2): the first chunk of its interleaved pipeline has the embedding alone and the
 * last the head, for which a layer was left out of either, so that chunks are of one layer. */
int tws_case_one_layer_chunks(const cJSON *row) {
  return strstr(tws_case_text(row, "source", "url"), "2407.21783") && tws_case_number(row, "parallel", "pp") > 1 &&
         !(tws_case_number(row, "parallel", "vpp") > 0);
}

/* Megatron-DeepSpeed's rebase of July 2023 (examples_deepspeed/rebase/README.md): what is measured after it runs
 * Megatron-LM of that year, what is measured before it that of 2021. */
int tws_case_is_rebased(const cJSON *row) {
  const char *id = tws_case_text(row, NULL, "id");
  const size_t length = strlen(id), end = strlen("-after");
  return strstr(tws_case_text(row, "source", "title"), "rebase") && length > end &&
         strcmp(id + length - end, "-after") == 0;
}
