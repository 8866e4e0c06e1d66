#include "cli/serve_options.h"

#include <string.h>

#include "job/inference.h"

tws_code tws_serve_options_read(const tws_serve_options *o, tws_serve_request *request, tws_error *err) {
  *request = (tws_serve_request){.prompt = o->prompt, .output = o->output};
  if (o->weights && tws_code_type_named(o->weights) == TWS_CODES_NONE)
    return tws_fail(err, TWS_USAGE, "--weights " TWS_CODE_TYPES, "--weights: no type is \"%.40s\"", o->weights);
  if (o->cache && strcmp(o->cache, "fp8") != 0)
    return tws_fail(err, TWS_USAGE, "--cache fp8, or none for the type of activations", "--cache: no type is \"%.40s\"",
                    o->cache);
  request->weight_codes = o->weights ? tws_code_type_named(o->weights) : TWS_CODES_NONE;
  request->cache_bits = o->cache ? 8 : 0;
  request->cache_block = o->cache_block;
  request->device_share = o->device_share;
  request->assumed_server = !o->software;
  return tws_server_parse(o->software, &request->server, err);
}

tws_code tws_serve_options_refuse(const tws_serve_options *o, tws_error *err) {
  if (!o->software && !o->weights && !o->cache && !o->cache_block && !(o->device_share > 0) &&
      o->prompt == TWS_SERVE_TOKENS && o->output == TWS_SERVE_TOKENS)
    return TWS_OK;
  return tws_fail(
      err, TWS_USAGE, "add --serve",
      "--software, --device-share, --weights, --cache, --cache-block, --prompt-tokens and --output-tokens concern "
      "inference");
}

tws_code tws_serve_spec(tws_job_spec *spec, tws_serve_request *request, tws_text *notes, tws_error *err) {
  tws_inference inference;
  const tws_code code = tws_inference_read(spec, &inference, err);
  if (code == TWS_OK && notes && inference.notes.data) tws_text_add(notes, "%s", inference.notes.data);
  tws_text_free(&inference.notes);
  TWS_TRY(code);
  if (!request->weight_codes && inference.weight_codes) request->weight_codes = inference.weight_codes;
  if (inference.most_tokens && request->prompt + request->output > inference.most_tokens)
    return tws_fail(err, TWS_INVALID, "use a larger max_out_tokens, or fewer --prompt-tokens and --output-tokens",
                    "max_out_tokens is %lld, and texts have %lld + %lld tokens", (long long)inference.most_tokens,
                    (long long)request->prompt, (long long)request->output);
  tws_job_spec_infer(spec);
  if (spec->ranks < 1 && spec->tensor_ranks > 1 && inference.given) spec->ranks = spec->tensor_ranks;
  spec->sequence = request->prompt + request->output; /* the longest text, which a table of positions must have */
  spec->runtime = "twinspeed";
  return TWS_OK;
}
