/* What the two files of the chat templates share; nobody else includes this. */
#ifndef POT_MODEL_CHAT_PARTS_H
#define POT_MODEL_CHAT_PARTS_H

#include "model/chat.h"

/* Refuses a request that the templates would fail on or leave something out of without a word; the sentence names the
 * place.  What it lets through, rendering relies on.  Only the text of tool-call arguments is left to rendering. */
pot_status pot_chat_check(const json_t *request, pot_err *err);

/* Is the list a tool's answer in the form [{"type": "tool_reference", "name": ...}, ...]? */
bool pot_chat_is_references(const json_t *content);
/* ... in the form [{"output": ..., "tool_call_id": ...}, ...]: the answers to several calls in one message? */
bool pot_chat_is_outputs(const json_t *content);
/* The part of a tool call that has name and arguments: {"function": {...}}, or the call itself. */
const json_t *pot_chat_called(const json_t *call);
bool pot_chat_has_role(const json_t *message, const char *role);

#endif
