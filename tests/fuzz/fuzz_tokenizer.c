/* tokenizer.json; when one is accepted, its own text is put through it and back. */
#include "model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    pot_err err;
    pot_tokenizer *tokenizer = NULL;
    if (pot_tokenizer_parse(&tokenizer, (const char *)data, size, "fuzz", &err)) return 0;
    pot_tokens ids = {0};
    pot_buffer text = {0};
    pot_detokenizer stream = {0};
    if (!pot_tokenizer_encode(&ids, tokenizer, (const char *)data, size, &err)) {
        pot_tokenizer_decode(&text, tokenizer, ids.ids, ids.n, true);
        for (size_t i = 0; i < ids.n; i++) pot_detokenizer_push(&text, &stream, tokenizer, ids.ids[i], false);
        pot_detokenizer_end(&text, &stream);
    }
    pot_buffer_free(&text);
    pot_tokens_free(&ids);
    pot_tokenizer_close(tokenizer);
    return 0;
}
