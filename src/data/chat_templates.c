/* The table of chat templates. Each follows a published template; tests/golden/README.md names the packages
 * and documents of the originals. The test data.chat compares the texts that these templates write with the
 * texts that the originals write (tests/golden/make_chat.py). */
#include "chat_templates.h"

#define CHATML(role)                                                                                         \
    {                                                                                                        \
        "<|im_start|>" role "\n", "<|im_end|>\n"                                                             \
    }
#define LLAMA3(role)                                                                                         \
    {                                                                                                        \
        "<|start_header_id|>" role "<|end_header_id|>\n\n", "<|eot_id|>"                                     \
    }
#define DEEPSEEK_BEGIN                                                                                       \
    "<\xef\xbd\x9c"                                                                                          \
    "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"

const char ax_chat_names[] = "chatml|llama3|mistral|qwen3|deepseek-coder|alpaca";

const chat_template chat_templates[CHAT_TEMPLATES] = {
    {
        .name = "llama3",
        .needs = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
        .marks = {"<|start_header_id|>", "<|eot_id|>"},
        .end = "<|eot_id|>",
        .begin = "<|begin_of_text|>",
        .frame = {[AX_CHAT_SYSTEM] = LLAMA3("system"),
                  [AX_CHAT_USER] = LLAMA3("user"),
                  [AX_CHAT_ASSISTANT] = LLAMA3("assistant")},
        .trims = true,
    },
    {
        .name = "qwen3",
        .needs = {"<|im_start|>", "<|im_end|>", "<think>", "</think>"},
        .marks = {"<|im_start|>", "</think>"},
        .end = "<|im_end|>",
        .frame = {[AX_CHAT_SYSTEM] = CHATML("system"),
                  [AX_CHAT_USER] = CHATML("user"),
                  [AX_CHAT_ASSISTANT] = CHATML("assistant")},
        .think = {"<think>\n", "\n</think>\n\n"},
    },
    {
        .name = "chatml",
        .needs = {"<|im_start|>", "<|im_end|>"},
        .marks = {"<|im_start|>", "<|im_end|>"},
        .end = "<|im_end|>",
        .frame = {[AX_CHAT_SYSTEM] = CHATML("system"),
                  [AX_CHAT_USER] = CHATML("user"),
                  [AX_CHAT_ASSISTANT] = CHATML("assistant")},
    },
    {
        .name = "deepseek-coder",
        .needs = {DEEPSEEK_BEGIN, "<|EOT|>"},
        .marks = {"### Instruction:", "<|EOT|>"},
        .end = "<|EOT|>",
        .begin = DEEPSEEK_BEGIN,
        .no_system = "You are an AI programming assistant, utilizing the Deepseek Coder model, developed by "
                     "Deepseek Company, and you only answer questions related to computer science. For "
                     "politically sensitive questions, security and privacy issues, and other non-computer "
                     "science questions, you will refuse to answer\n",
        .frame = {[AX_CHAT_SYSTEM] = {"", ""},
                  [AX_CHAT_USER] = {"### Instruction:\n", "\n"},
                  [AX_CHAT_ASSISTANT] = {"### Response:\n", "\n<|EOT|>\n"}},
    },
    {
        .name = "mistral",
        .needs = {"<s>", "</s>"},
        .guards = {"[INST]", "[/INST]"},
        .marks = {"[INST]", "[/INST]"},
        .other = "<<SYS>>", /* a Jinja template that has this string is Llama 2's, which has the same marks */
        .end = "</s>",
        .begin = "<s>",
        .frame = {[AX_CHAT_SYSTEM] = {"[INST] ", "\n"},
                  [AX_CHAT_USER] = {"[INST] ", " [/INST]"},
                  [AX_CHAT_ASSISTANT] = {"", "</s>"}},
        .after_system = {"", " [/INST]"},
        .opening = " ",
    },
    {
        .name = "alpaca",
        .needs = {CHAT_EOS},
        .marks = {"### Instruction:", "### Response:"},
        .end = CHAT_EOS,
        .begin = CHAT_BEGIN,
        .no_system = "Below is an instruction that describes a task. Write a response that appropriately "
                     "completes the request.\n\n",
        .no_system_input = "Below is an instruction that describes a task, paired with an input that "
                           "provides further context. Write a response that appropriately completes the "
                           "request.\n\n",
        .frame = {[AX_CHAT_SYSTEM] = {"", "\n\n"},
                  [AX_CHAT_USER] = {"### Instruction:\n", "\n\n"},
                  [AX_CHAT_INPUT] = {"### Input:\n", "\n\n"},
                  [AX_CHAT_ASSISTANT] = {"### Response:\n", CHAT_EOS}},
        .between = "\n\n",
    },
};
