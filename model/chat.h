/* Chat templates of GLM-5.2 and GLM-5.3, rendered by our own code byte for byte as the published jinja templates do
 * (tests/fixtures/chat_vectors.json).  Input is what an OpenAI client sends. */
#ifndef POT_MODEL_CHAT_H
#define POT_MODEL_CHAT_H

#include <jansson.h>

#include "common/buffer.h"
#include "common/status.h"

typedef enum pot_chat_template { POT_CHAT_GLM_5_2, POT_CHAT_GLM_5_3 } pot_chat_template;

/* By name ("glm-5.2", "glm-5.3"), else by what DIR says (chat_template.jinja or tokenizer_config.json), else 5.2. */
pot_status pot_chat_choose(pot_chat_template *out, const char *directory, const char *name, pot_err *err);
const char *pot_chat_template_name(pot_chat_template which);

/* `request`: {"messages": [...], "tools": [...], "enable_thinking": bool, "reasoning_effort": "high", "clear_thinking": bool,
 * "add_generation_prompt": bool (default true)}: the "input" of chat_vectors.json.  Appends the prompt text. */
pot_status pot_chat_render(pot_buffer *out, pot_chat_template which, const json_t *request, pot_err *err);

#endif
