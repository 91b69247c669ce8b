/* The table of chat templates. Each follows a published template; tests/golden/README.md names the packages
 * and documents of the originals. The test token.chat compares the texts that these templates write with the
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

const char ax_chat_names[] = "chatml|llama3|llama3.1|mistral|mistral-v0|mistral-v1|mistral-v3|mistral-v3-"
                             "tekken|mistral-v7|mistral-v7-tekken|"
                             "qwen2.5|qwen3|deepseek-coder|alpaca";

/* Those of Qwen 2.5 and 3: the models' templates treat arguments that are a string differently. */
#define QWEN_TOOLS                                                                                           \
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with " \
    "function signatures within <tools></tools> XML tags:\n<tools>"
#define QWEN(string_arguments)                                                                               \
    {                                                                                                        \
        .after_text = "\n\n",                                                                                \
        .list = {QWEN_TOOLS,                                                                                 \
                 "\n</tools>\n\nFor each function call, return a json object with function name "            \
                 "and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "          \
                 "<function-name>, \"arguments\": <args-json-object>}\n</tool_call>"},                       \
        .tool = {"\n", ""}, .gap = "\n", .call = {"<tool_call>\n{\"name\": \"", "}\n</tool_call>"},          \
        .arguments = "\", \"arguments\": ", .verbatim = string_arguments,                                    \
        .row = {"<|im_start|>user", "<|im_end|>\n"}, .result = {                                             \
            "\n<tool_response>\n",                                                                           \
            "\n</tool_response>"                                                                             \
        }                                                                                                    \
    }
static const chat_tools qwen_tools = QWEN(true), qwen25_tools = QWEN(false);
static const chat_tools llama31_tools = {
    .in_user = true,
    .empty = true,
    .indent = 4,
    .note = "Environment: ipython\n",
    .list =
        {"Given the following functions, please respond with a JSON for a function call with its proper "
         "arguments that best answers the given prompt.\n\nRespond in the format {\"name\": function name, "
         "\"parameters\": dictionary of argument name and its value}.Do not use variables.\n\n",
         ""},
    .tool = {"", "\n\n"},
    .call = {"{\"name\": \"", "}"},
    .arguments = "\", \"parameters\": ",
    .row = {"", ""},
    .result = {"<|start_header_id|>ipython<|end_header_id|>\n\n", "<|eot_id|>"},
    .quoted = true,
};

/* Mistral's own, by the version of mistral-common's tokenizer: before version 7 the system's text stands in a
 * turn of the user. `space` stands behind each token, except in the versions for the tokenizer Tekken. */
#define MISTRAL_OLD(space)                                                                                   \
    .needs = {"<s>", "</s>", "[INST]", "[/INST]"}, .end = "</s>", .begin = "<s>", .asked = true,             \
    .system_at = CHAT_LAST_USER,                                                                             \
    .frame = {[AX_CHAT_SYSTEM] = {"", "\n\n"},                                                               \
              [AX_CHAT_USER] = {"[INST]" space, "[/INST]"},                                                  \
              [AX_CHAT_ASSISTANT] = {"", "</s>"}},                                                           \
    .opening = space
#define MISTRAL_7(space)                                                                                     \
    .needs = {"<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"}, .end = "</s>",     \
    .begin = "<s>", .asked = true,                                                                           \
    .frame = {[AX_CHAT_SYSTEM] = {"[SYSTEM_PROMPT]" space, "[/SYSTEM_PROMPT]"},                              \
              [AX_CHAT_USER] = {"[INST]" space, "[/INST]"},                                                  \
              [AX_CHAT_ASSISTANT] = {"", "</s>"}},                                                           \
    .opening = space

const chat_template chat_templates[CHAT_TEMPLATES] = {
    {
        .name = "llama3.1",
        .asked = true,
        .needs = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
        .end = "<|eot_id|>",
        .begin = "<|begin_of_text|>",
        .default_system = "",
        .preamble = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
        .frame = {[AX_CHAT_SYSTEM] = LLAMA3("system"),
                  [AX_CHAT_USER] = LLAMA3("user"),
                  [AX_CHAT_ASSISTANT] = LLAMA3("assistant")},
        .trims = true,
        .tools = &llama31_tools,
    },
    {
        .name = "qwen2.5",
        .asked = true,
        .needs = {"<|im_start|>", "<|im_end|>"},
        .end = "<|im_end|>",
        .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
        .frame = {[AX_CHAT_SYSTEM] = CHATML("system"),
                  [AX_CHAT_USER] = CHATML("user"),
                  [AX_CHAT_ASSISTANT] = CHATML("assistant")},
        .tools = &qwen25_tools,
    },
    {
        .name = "llama3",
        .needs = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
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
        .end = "<|im_end|>",
        .frame = {[AX_CHAT_SYSTEM] = CHATML("system"),
                  [AX_CHAT_USER] = CHATML("user"),
                  [AX_CHAT_ASSISTANT] = CHATML("assistant")},
        .think = {"<think>\n", "\n</think>\n\n"},
        .tools = &qwen_tools,
    },
    {
        .name = "chatml",
        .needs = {"<|im_start|>", "<|im_end|>"},
        .end = "<|im_end|>",
        .frame = {[AX_CHAT_SYSTEM] = CHATML("system"),
                  [AX_CHAT_USER] = CHATML("user"),
                  [AX_CHAT_ASSISTANT] = CHATML("assistant")},
        .tools = &qwen_tools,
    },
    {
        .name = "deepseek-coder",
        .needs = {DEEPSEEK_BEGIN, "<|EOT|>"},
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
    {.name = "mistral-v7-tekken", MISTRAL_7("")},
    {.name = "mistral-v7", MISTRAL_7(" ")},
    {.name = "mistral-v3-tekken", MISTRAL_OLD("")},
    {.name = "mistral-v3", MISTRAL_OLD(" ")},
    {
        .name = "mistral-v1",
        .asked = true,
        .needs = {"<s>", "</s>"},
        .guards = {"[INST]", "[/INST]"},
        .end = "</s>",
        .begin = "<s>",
        .system_at = CHAT_FIRST_USER,
        .frame = {[AX_CHAT_SYSTEM] = {"", "\n\n"},
                  [AX_CHAT_USER] = {" [INST] ", " [/INST]"},
                  [AX_CHAT_ASSISTANT] = {"", "</s>"}},
        .opening = " ",
    },
    {
        .name = "mistral-v0", /* what Mistral's models had at first in Hugging Face's format */
        .asked = true,
        .needs = {"<s>", "</s>"},
        .guards = {"[INST]", "[/INST]"},
        .end = "</s>",
        .begin = "<s>",
        .frame = {[AX_CHAT_USER] = {"[INST] ", " [/INST]"}, [AX_CHAT_ASSISTANT] = {"", "</s>"}},
    },
    {
        .name = "mistral",
        .needs = {"<s>", "</s>"},
        .guards = {"[INST]", "[/INST]"},
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
