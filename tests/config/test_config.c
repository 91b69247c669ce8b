/* engine: the training configuration — defaults, rules between keys, dump and load. */
#include "axonn/config.h"
#include "axonn/model.h"
#include "axonn/parallel.h"

#include <stdio.h>

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Loads `text` as the file "t.yaml" in the build directory. */
static ax_status load(const char *text, size_t n, const char *const *overrides, ax_config *cfg)
{
    assert_int_equal(ax_file_write_atomic("t.yaml", text, strlen(text)), AX_OK);
    return ax_config_load("t.yaml", (char *const *)overrides, n, AX_CONFIG_TO_TRAIN, cfg);
}

static void contract_defaults(void **state)
{
    (void)state;
    ax_config c;
    assert_int_equal(load("model: {family: gpt2}\ndata: {train: x.txt}\n", 0, NULL, &c), AX_OK);
    assert_string_equal(c.model.family, "gpt2");
    assert_true(c.model.layers == 12 && c.model.hidden == 768 && c.model.heads == 12 && c.model.ffn == 3072);
    assert_true(c.model.vocab == 50257 && c.model.seq_len == 1024 && c.model.dropout == 0 && c.model.tie);
    assert_true(c.data.order == AX_CONFIG_SHUFFLED && c.data.mask_documents);
    assert_true(c.tune.method == AX_CONFIG_FULL && c.tune.rank == 16 && c.tune.alpha == 32 &&
                !c.tune.rslora && c.tune.dropout == 0 && c.tune.targets.count == 1 &&
                !strcmp(c.tune.targets.items[0], "all"));
    assert_true(c.data.goldfish.k == 0 && c.data.goldfish.window == 13 && c.data.goldfish.kind == 0);
    assert_true(c.data.loss == AX_CONFIG_AUTO && !c.data.chat_template);
    assert_true(c.train.steps == 1000 && c.train.global_batch == 64 && c.train.micro_batch == 4);
    assert_true(c.train.precision == AX_CONFIG_BF16 && c.train.recompute == AX_CONFIG_RECOMPUTE_NONE &&
                c.train.recompute_comm == AX_CONFIG_AGAIN);
    assert_true(c.train.seed == 1234 && c.train.nonfinite == AX_CONFIG_STOP);
    assert_string_equal(c.train.resume, "auto");
    assert_string_equal(c.optim.name, "adamw");
    assert_true(c.optim.lr == 6e-4 && c.optim.betas[0] == 0.9 && c.optim.betas[1] == 0.95);
    assert_true(c.optim.eps == 1e-8 && c.optim.weight_decay == 0.1 && c.optim.clip == 1);
    assert_string_equal(c.optim.schedule, "cosine");
    assert_true(c.optim.warmup.number == 0 && c.optim.warmup.percent == 0 && c.optim.min_lr == 0 &&
                c.optim.decay == 0.2);
    assert_true(c.run.checkpoint_interval == 200 && c.run.keep_latest == 3 && c.run.eval_interval == 100);
    assert_true(c.run.save_dtype == AX_CONFIG_FP32 && c.threads == 0);
    assert_string_equal(c.device, "cpu");
    assert_non_null(strstr(c.run.dir, "/runs/t"));
    ax_config_fini(&c);
}

static void rules_over_keys(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"data: {train: x}\n",
         "default: model.family: give exactly one of model.family (a new model), model.config "
         "(a new model of the shape "
         "in a config.json) and model.from (an existing model); none is given"},
        {"model: {family: gpt2, from: y}\ndata: {train: x}\n",
         "t.yaml:1:17: model.family: give exactly one of model.family (a new model), model.config (a new "
         "model of "
         "the "
         "shape in a config.json) and model.from (an existing model); more than one is given"},
        {"model: {family: gpt2}\n", "data.train: required, but not given"},
        {"model: {family: gpt2, hidden: 96, heads: 7}\ndata: {train: x}\n",
         "t.yaml:1:42: model.heads: 7 must divide model.hidden (96); the nearest are 6 and 8"},
        {"model: {family: gpt2, hidden: 96, heads: 97}\ndata: {train: x}\n",
         "t.yaml:1:42: model.heads: 97 must divide model.hidden (96), so it cannot be larger"},
        {"model: {family: gpt2}\ndata: {train: x}\ntrain: {global_batch: 10, micro_batch: 4}\n",
         "t.yaml:3:23: train.global_batch: 10 must be a multiple of train.micro_batch (4): give "
         "train.global_batch=8 or 12, or train.micro_batch=2 or 5"},
        {"model: {family: gpt2}\ndata: {train: x}\ntrain: {global_batch: 3}\n",
         "t.yaml:3:23: train.global_batch: 3 must be a multiple of train.micro_batch (4): give "
         "train.global_batch=4, or train.micro_batch=3"},
        {"model: {family: gpt2}\ndata: {train: x}\noptim: {lr: 1e-4, min_lr: 2e-4}\n",
         "t.yaml:3:27: optim.min_lr: 0.0002 must be at most optim.lr (0.0001)"},
        {"model: {family: gpt2}\ndata: {train: x}\ntrain: {grad_dtype: fp16}\n",
         "t.yaml:3:21: train.grad_dtype: must be fp32 or bf16, the value of train.precision, not fp16"},
        {"model: {family: gpt2}\ndata: {train: x}\ntrain: {grad_dtype: bf16, precision: fp32}\n",
         "t.yaml:3:21: train.grad_dtype: must be fp32, not bf16, because train.precision is fp32"},
        {"model: {family: gpt2}\ndata: {train: x}\ntrain: {recompute_comm: keep}\n",
         "t.yaml:3:25: train.recompute_comm: has no effect while train.recompute is none: "},
        {"model: {family: gpt2}\ndata: {train: x}\ntrain: {recompute: full, recompute_comm: both}\n",
         "t.yaml:3:42: train.recompute_comm: must be again or keep, not \"both\""},
        {"model: {family: gpt2}\ndata: {train: x}\ntrain: {grad_dtype: f8}\n",
         "t.yaml:3:21: train.grad_dtype: must be fp32, bf16 or fp16, not \"f8\""},
        {"model: {family: gpt2}\ndata: {train: x, goldfish: {k: 1}}\n",
         "t.yaml:2:32: data.goldfish.k: 1 would drop every target; use 0 (no goldfish loss), or at least 2 "
         "(4 "
         "drops every fourth)"},
        {"model: {family: gpt2}\ndata: {train: x, goldfish: {k: 4, window: 0}}\n",
         "t.yaml:2:43: data.goldfish.window: must be from 1 to 2048, not \"0\""},
        {"model: {family: gpt2, seq_len: 32}\ndata: {train: x, goldfish: {k: 4, window: 33}}\n",
         "t.yaml:2:43: data.goldfish.window: 33 tokens are longer than a row: choose at most model.seq_len "
         "(32)"},
        {"model: {family: gpt2}\ndata: {train: x}\noffload: {dir: /nvme}\n",
         "t.yaml:3:16: offload.dir: has no effect while offload.optimizer is none: "},
        {"model: {family: gpt2}\ndata: {train: x}\noffload: {optimizer: host, dir: /nvme}\n",
         "t.yaml:3:33: offload.dir: has no effect while offload.optimizer is host: "},
        {"model: {family: gpt2}\ndata: {train: x}\noffload: {optimizer: host, chunk: 8}\n",
         "t.yaml:3:35: offload.chunk: needs optim.clip: 0, because "},
        {"model: {family: gpt2, seq_len: 32}\ndata: {train: x}\nrun: {recall: {data: y, tokens: 33}}\n",
         "t.yaml:3:33: run.recall.tokens: a target of 33 tokens leaves no token for the prompt: choose at "
         "most "
         "model.seq_len (32)"},
        {"model: {family: gpt2}\ndata: {train: x}\nrun: {recall: {tokens: 0, interval: 7}}\n",
         "t.yaml:3:24: run.recall.tokens: must be from 1 to 16777216, not \"0\""},
        {"model: {family: gpt2}\ndata: {train: x}\nrun: {recall: {tokens: 0, interval: 7}}\n",
         "t.yaml:3:37: run.recall.interval: has no effect without run.recall.data, the documents to "
         "recall: "},
        {"model: {family: gpt2}\ndata: {train: x}\nrun: {recall: {data: [{path: y, epochs: 2}]}}\n",
         "t.yaml:3:22: run.recall.data: only sources of data.train may have epochs: give "},
        {"model: {family: gpt2}\ndata: {train: x}\nrun: {recall: {data: [{path: y, weight: 2}]}}\n",
         "t.yaml:3:22: run.recall.data: only sources of data.train may have a weight: give "},
        {"model: {family: gpt2}\ndata: {train: x, valid: [{path: y, weight: 2}]}\n",
         "t.yaml:2:25: data.valid: only sources of data.train may have a weight: give "},
        {"model: {family: gpt2}\ndata: {train: x, goldfish: {window: 7}}\n",
         "t.yaml:2:37: data.goldfish.window: has no effect while data.goldfish.k is 0 (no goldfish loss): "},
        {"model: {from: y}\ndata: {train: x, goldfish: {k: 0, window: 13, kind: static}}\noptim: {warmup: "
         "101%}\n",
         "t.yaml:2:53: data.goldfish.kind: has no effect while data.goldfish.k is 0 (no goldfish loss): set "
         "data.goldfish.k, or leave this key out\n"},
        {"model: {family: gpt2}\ndata: {train: x}\noptim: {warmup: 101%}\n",
         "t.yaml:3:17: optim.warmup: must be from 0% to 100%, not \"101%\""},
        {"model: {family: gpt2}\ndata: {train: x}\noptim: {warmup: x%}\n",
         "t.yaml:3:17: optim.warmup: must be an integer or a percentage such as 5%, not \"x%\""},
        {"model: {family: gpt2}\ndata: {train: x}\noptim: {warmup: -1}\n",
         "t.yaml:3:17: optim.warmup: must be from 0 to 1000000000, not \"-1\""},
        {"model: {family: gpt2}\ndata: {train: x}\ntrain: {global_batch: 24}\ngrid: {data: 4, z: 2}\n",
         "t.yaml:3:23: train.global_batch: 24 must be a multiple of train.micro_batch x the ranks of the "
         "axes "
         "z and data (4 x 8 = 32): give train.global_batch=32, or train.micro_batch=3"},
        {"model: {family: gpt2}\ndata: {train: x}\ntrain: {global_batch: 24}\ngrid: {data: 4}\n",
         "t.yaml:3:23: train.global_batch: 24 must be a multiple of train.micro_batch x the ranks of the "
         "axes "
         "z and data (4 x 4 = 16): give train.global_batch=16 or 32, or train.micro_batch=3 or 6"},
        {"model: {family: gpt2}\ndata: {train: x}\ntrain: {global_batch: 25}\ngrid: {data: 4}\n",
         "(4 x 4 = 16): give train.global_batch=16 or 32"},
        {"model: {family: gpt2}\ndata: {train: x}\ngrid: {pipe: 15}\n",
         "t.yaml:3:14: grid.pipe: 15 stages are too many for a model of 12 blocks: each needs the embedding, "
         "a block or the head; at most 14"},
        {"model: {family: gpt2}\ndata: {train: x}\ngrid: {pipe: 3}\npipe: {cut: [7, 3]}\n",
         "t.yaml:4:13: pipe.cut: block 3 is not above the block before it (blocks 0 to 11, 12: a stage with "
         "only the head); for instance [3, 8]"},
        {"model: {family: gpt2}\ndata: {train: x}\ngrid: {pipe: 3}\npipe: {cut: 7}\n",
         "pipe.cut: lists 1 block, but grid.pipe = 3 needs 2: the first blocks of all stages but the first; "
         "for instance [3, 8]"},
        {"model: {family: gpt2}\ndata: {train: x}\ngrid: {pipe: 3}\npipe: {cut: [5, auto]}\n",
         "pipe.cut: give either the word auto alone, or a list of block numbers without it"},
        {"model: {family: gpt2}\ndata: {train: x}\npipe: {cut: 7}\n",
         "pipe.cut: lists blocks, but there is only one stage: leave the key out"},
        {"model: {family: gpt2}\ndata: {train: x}\ngrid: {pipe: 2}\npipe: {schedule: gpipe, slack: 2}\n",
         "pipe.slack: has an effect only with pipe.schedule message or 1f1b: leave the key out"},
        {"model: {family: gpt2}\ndata: {train: x}\ngrid: {pipe: 2}\npipe: {chunks: 4}\n",
         "pipe.chunks: has an effect only with pipe.schedule interleaved: leave the key out"},
        {"model: {family: gpt2}\ndata: {train: x}\npipe: {schedule: zb}\n",
         "t.yaml:3:18: pipe.schedule: must be message, 1f1b, gpipe or interleaved, not \"zb\""},
        {"model: {family: gpt2}\ndata: {train: x}\ntrain: {global_batch: 24, micro_batch: 2}\n"
         "grid: {pipe: 4, data: 2}\npipe: {schedule: interleaved}\n",
         "t.yaml:3:23: train.global_batch: 24 has 6 micro-batches, but pipe.schedule=interleaved needs a "
         "multiple "
         "of grid.pipe (4): make train.global_batch a multiple of train.micro_batch x the ranks of the axes "
         "z and data (2 x 2 = 4) x grid.pipe; the nearest are 16 and 32"},
        {"model: {family: gpt2}\ndata: {train: x}\ntrain: {global_batch: 4, micro_batch: 4}\n"
         "grid: {pipe: 2}\npipe: {schedule: interleaved}\n",
         "train.global_batch: 4 has 1 micro-batch, but pipe.schedule=interleaved needs a multiple of "
         "grid.pipe "
         "(2): make train.global_batch a multiple of train.micro_batch (4) x grid.pipe; the nearest is 8"},
        {"model: {family: gpt2}\ndata: {train: x}\ngrid: {pipe: 3}\npipe: {schedule: interleaved, chunks: "
         "5}\n"
         "train: {global_batch: 24}\n",
         "t.yaml:4:39: pipe.chunks: 5 chunks of each of 3 stages are too many for a model of 12 blocks: each "
         "chunk needs the embedding, a block or the head; at most 4"},
        {"model: {family: gpt2}\ndata: {train: x}\ngrid: {pipe: 2}\ntrain: {global_batch: 8}\n"
         "pipe: {schedule: interleaved, cut: 7}\n",
         "pipe.cut: lists 1 block, but grid.pipe x pipe.chunks = 4 needs 3: the first blocks of all chunks "
         "but the first; for instance "
         "[2, 6, 9]"},
        {"model: {family: gpt2}\ndata: {train: x}\ngrid: {y: 2, x: 4}\nstrategy: megatron\n",
         "t.yaml:3:11: grid.y: must be 1, not 2, with strategy megatron: 1D tensor parallelism (x)"},
        {"model: {family: gpt2}\ndata: {train: x}\ngrid: {x: 2, data: 2}\nstrategy: fsdp\n",
         "grid.data: must be 1, not 2, with strategy fsdp"},
        {"model: {family: gpt2}\ndata: {train: x}\nstrategy: zero\n",
         "t.yaml:3:11: strategy: must be axonn, megatron, fsdp, hsdp or ddp, not \"zero\""},
        {"model: {family: gpt2}\ndata: {train: x}\nzero: 4\n", "zero: must be from 0 to 3"},
        {"model: {family: bert}\ndata: {train: x}\n",
         "t.yaml:1:17: model.family: must be gpt2, llama, mistral, ministral, qwen2, qwen3, mixtral, "
         "qwen3_moe or olmoe, not \"bert\""},
        {"model: {family: gpt2}\ndata: {train: x}\nnowhere: 1\n",
         "t.yaml:3:1: nowhere: unknown key; there are model, moe, tune, data"},
        {"model: {family: gpt2, colours: 2}\ndata: {train: x}\n",
         "t.yaml:1:23: model.colours: unknown key; there are family, config, from, layers,"},
        {"model: {family: gpt2, experts: 2}\ndata: {train: x}\n",
         "t.yaml:1:32: model.experts: models of family gpt2 have no experts: leave the key out"},
        {"model: {family: llama}\ndata: {train: x}\nmoe: {balance: 0.1, z_loss: 0.2}\n",
         "t.yaml:3:16: moe.balance: models of family llama have no experts: leave the key out"},
        {"model: {family: llama}\ndata: {train: x}\nmoe: {capacity: 1.25}\n",
         "t.yaml:3:17: moe.capacity: models of family llama have no experts: leave the key out"},
        {"model: {family: mixtral}\ndata: {train: x}\nmoe: {capacity: -1}\n",
         "t.yaml:3:17: moe.capacity: must be from 0 to 65536"},
        {"model: {family: mixtral}\ndata: {train: x}\nmoe: {capacity: much}\n",
         "t.yaml:3:17: moe.capacity: must be a number"},
        {"model: {family: mixtral, expert_ffn: 64}\ndata: {train: x}\n",
         "t.yaml:1:38: model.expert_ffn: models of family mixtral have no such setting: leave the key out"},
        {"model: {family: mixtral}\ndata: {train: x}\ngrid: {data: 4, expert: 3}\n",
         "t.yaml:3:25: grid.expert: 3 must divide grid.data (4); the nearest are 2 and 4"},
        {"model: {family: mixtral, experts: 3}\ndata: {train: x}\ngrid: {data: 4, expert: 4}\n",
         "t.yaml:3:25: grid.expert: 4 ranks are too many for 3 experts: choose a divisor of grid.data that "
         "is "
         "at most 3"},
        {"model: {family: llama}\ndata: {train: x}\ngrid: {data: 2, expert: 2}\n",
         "t.yaml:3:25: grid.expert: models of family llama have no experts: leave the key out"},
        {"model: {family: mixtral}\ndata: {train: x}\nstrategy: fsdp\ngrid: {z: 2, data: 1, expert: 2}\n",
         "t.yaml:4:31: grid.expert: 2 must divide grid.data (1), so it cannot be larger"},
        {"model: {family: mixtral}\ndata: {train: x}\nmoe: {room: 3}\n",
         "t.yaml:3:13: moe.room: has no effect while grid.expert is 1: "},
        {"model: {family: mixtral}\ndata: {train: x}\ngrid: {data: 2, expert: 2}\noverlap: {dtd: false}\n",
         "t.yaml:4:16: overlap.dtd: has no effect without moe.capacity and grid.expert above 1: "},
        {"model: {family: mixtral}\ndata: {train: x}\nmoe: {capacity: 1}\noverlap: {dtd: false}\n",
         "t.yaml:4:16: overlap.dtd: has no effect without moe.capacity and grid.expert above 1: "},
        {"model: {family: mixtral}\ndata: {train: x}\nmoe: {room: 0.5}\ngrid: {data: 2, expert: 2}\n",
         "t.yaml:3:13: moe.room: must be"},
        {"model: {family: qwen3_moe, experts: 4, top_k: 5}\ndata: {train: x}\n",
         "t.yaml:1:47: model.top_k: each token chooses 5 experts of 4: it may choose 1 to 4"},
        {"model: {family: olmoe, experts: 0}\ndata: {train: x}\n",
         "t.yaml:1:33: model.experts: models of family olmoe have at least one expert, not 0"},
        {"model: {family: qwen3_moe, sparse_step: 0}\ndata: {train: x}\n",
         "t.yaml:1:41: model.sparse_step: must be at least 1, not 0"},
        {"model: {family: qwen3_moe, layers: 2, sparse_step: 3}\ndata: {train: x}\n",
         "t.yaml:1:52: model.sparse_step: leaves none of the 2 blocks with experts"},
        {"model: {family: qwen3_moe, layers: 2, dense_layers: [0-1]}\ndata: {train: x}\n",
         "model.dense_layers: leaves none of the 2 blocks with experts"},
        {"model: {family: mixtral, renormalize: false}\ndata: {train: x}\n",
         "t.yaml:1:39: model.renormalize: models of family mixtral have no such setting: leave the key out"},
        {"model: {family: olmoe, experts: 4, top_k: 1, renormalize: true}\ndata: {train: x}\n",
         "t.yaml:1:43: model.top_k: with one expert for each token its renormalized weight is always 1"},
        {"model: {family: qwen3_moe, layers: 4, dense_layers: [0, 4]}\ndata: {train: x}\n",
         "model.dense_layers: \"4\" is no block from 0 to 3, and no range of them"},
        {"model: {family: gpt2, kv_heads: 2}\ndata: {train: x}\n",
         "t.yaml:1:33: model.kv_heads: models of family gpt2 have no such setting: leave the key out"},
        {"model: {family: gpt2, head_dim: 32}\ndata: {train: x}\n",
         "t.yaml:1:33: model.head_dim: models of family gpt2 have no such setting: leave the key out"},
        {"model: {family: gpt2, rope_theta: 1e4}\ndata: {train: x}\n",
         "t.yaml:1:35: model.rope_theta: models of family gpt2 have no such setting: leave the key out"},
        {"model: {family: llama, window: 8}\ndata: {train: x}\n",
         "t.yaml:1:32: model.window: models of family llama have no such setting: leave the key out"},
        {"model: {family: qwen3, heads: 6, kv_heads: 4}\ndata: {train: x}\n",
         "t.yaml:1:44: model.kv_heads: 4 must divide model.heads (6); the nearest are 3 and 6"},
        {"model: {family: qwen3, head_dim: 7}\ndata: {train: x}\n",
         "t.yaml:1:34: model.head_dim: the width of a head, 7, must be even in family qwen3"},
        {"model: {family: qwen3, hidden: 36}\ndata: {train: x}\n",
         "model.heads: the width of a head, 3, must be even in family qwen3: RoPE rotates pairs"},
        {"model: {family: llama, rope_theta: 1}\ndata: {train: x}\n",
         "t.yaml:1:36: model.rope_theta: must be above 1, not 1"},
        {"model: {family: llama, activation: gelu}\ndata: {train: x}\n",
         "t.yaml:1:36: model.activation: models of family llama have the activation silu"},
        {"model: {family: gpt2, activation: silu}\ndata: {train: x}\n",
         "t.yaml:1:35: model.activation: models of family gpt2 have the activation gelu_new or gelu"},
    };
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_config c;
        assert_int_equal(load(cases[i].text, 0, NULL, &c), AX_ERR_USAGE);
        if (!strstr(ax_error_message(), cases[i].message))
            assert_string_equal(ax_error_message(), cases[i].message);
        ax_config_fini(&c);
    }
}

/* Keys as other programs write them. */
static void keys_of_other_programs(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"optim: {warmup: 0.03}", "optim.warmup: must be an integer or a percentage, not \"0.03\"; write 3%"},
        {"optim: {warmup: 0.07}", "; write 7%"},
        {"lora_alpha: 32", "lora_alpha: unknown key; here it is tune.alpha"},
        {"lora_dropout: 0.1", "lora_dropout: unknown key; here it is tune.dropout"},
        {"use_rslora: true", "use_rslora: unknown key; here it is tune.rslora"},
        {"tune: {lora_r: 8}", "tune.lora_r: unknown key; here it is tune.rank"},
        {"lora: {r: 8}", "lora: unknown key; here it is tune.method: lora"},
        {"target-modules: [q]", "target-modules: unknown key; here it is tune.targets"},
        {"moe: {router_topk: 2}", "moe.router_topk: unknown key; here it is model.top_k"},
        {"model: {num_local_experts: 2}", "model.num_local_experts: unknown key; here it is model.experts"},
        {"num_train_epochs: 3", "unknown key; here it is data.train: [{path: FILE, epochs: N}]"},
        {"train: {gradient_accumulation_steps: 3}",
         "here it is train.global_batch: train.micro_batch x grid.data x grid.z x the accumulation steps"},
        {"optim: {Learning_Rate: 3}", "unknown key; here it is optim.lr"},
        {"per_device_train_batch_size: 3", "unknown key; here it is train.micro_batch"},
        {"optim: {warmup_ratio: 0.1}", "unknown key; here it is optim.warmup: P%"},
        {"lr: 3", "unknown key; did you mean optim.lr?"},
    };
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_config c;
        assert_int_equal(load(cases[i].text, 0, NULL, &c), AX_ERR_USAGE);
        if (!strstr(ax_error_message(), cases[i].message))
            assert_string_equal(ax_error_message(), cases[i].message);
        ax_config_fini(&c);
    }
}

/* What the table of other names tells to write begins with a key, a group of keys with one key, or a flag; no
 * such name is the last name of a key, which would hide the better hint. */
static void other_names_lead_to_keys(void **state)
{
    (void)state;
    size_t n, count;
    const ax_option_synonym *rows = ax_config_synonyms(&n);
    const ax_option *keys = ax_config_options(&count);
    for (size_t i = 0; i < n; i++) {
        bool known = !strncmp(rows[i].write, "--", 2);
        for (size_t k = 0; k < count; k++) {
            const char *dot = strrchr(keys[k].key, '.'), *last = dot ? dot + 1 : keys[k].key;
            size_t length = strcspn(rows[i].write, ": =");
            known = known || (!strncmp(keys[k].key, rows[i].write, length) && !keys[k].key[length]);
            for (const char *at = rows[i].names; (at = strstr(at, last)); at += strlen(last))
                if ((at == rows[i].names || at[-1] == '|') && (!at[strlen(last)] || at[strlen(last)] == '|'))
                    fail_msg("%s is a name of another program, and of the key %s", last, keys[k].key);
        }
        if (!known)
            fail_msg("no key: %s", rows[i].write);
    }
}

/* After a syntax error, keys that were not read are not reported as missing. */
static void unreadable_text(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "model:\n\tfamily: gpt2\n", "model: {family: gpt2\n",
                                        "\177ELF\2"};
    for (size_t i = 0; i < AX_COUNT(texts); i++) {
        ax_config c;
        assert_int_equal(load(texts[i], 0, NULL, &c), AX_ERR_USAGE);
        assert_memory_equal(ax_error_message(), "t.yaml:", 7);
        assert_null(strchr(ax_error_message(), '\n'));
        ax_config_fini(&c);
    }
}

/* data.train is required only for training. */
static void data_is_required_for_training_only(void **state)
{
    (void)state;
    static const char *const text = "model: {family: gpt2}\n";
    ax_config c;
    assert_int_equal(load(text, 0, NULL, &c), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "data.train: required, but not given"));
    ax_config_fini(&c);
    assert_int_equal(ax_config_load("t.yaml", NULL, 0, AX_CONFIG_TO_MEASURE, &c), AX_OK);
    assert_int_equal(c.data.train.count, 0);
    ax_config_fini(&c);
}

/* A key that is not given has the default of the family. */
static void families_have_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int64_t kv_heads, ffn;
        double eps, theta;
        ax_activation activation;
        bool tie;
    } rows[] = {{"family: gpt2", 12, 3072, 1e-5, 0, AX_GELU_TANH, true},
                {"family: gpt2, tie: false, activation: gelu", 12, 3072, 1e-5, 0, AX_GELU_EXACT, false},
                {"family: llama", 12, 2048, 1e-6, 10000, AX_SILU, false},
                {"family: llama, kv_heads: 4, norm_eps: 1e-5, rope_theta: 5e5, tie: true", 4, 2048, 1e-5, 5e5,
                 AX_SILU, true},
                {"family: mistral, window: 256", 12, 2048, 1e-6, 10000, AX_SILU, false},
                {"family: qwen3, hidden: 130, heads: 4, head_dim: 64, ffn: 100", 4, 100, 1e-6, 10000, AX_SILU,
                 false}};
    for (size_t i = 0; i < AX_COUNT(rows); i++) {
        ax_config c;
        char text[256];
        snprintf(text, sizeof text, "model: {%s}\ndata: {train: x}\n", rows[i].model);
        if (load(text, 0, NULL, &c) != AX_OK)
            fail_msg("%s: %s", rows[i].model, ax_error_message());
        assert_int_equal(c.model.kv_heads, rows[i].kv_heads);
        assert_int_equal(c.model.ffn, rows[i].ffn);
        assert_int_equal(ax_model_activation(c.model.activation), rows[i].activation);
        assert_true(c.model.norm_eps == rows[i].eps && c.model.rope_theta == rows[i].theta &&
                    c.model.tie == rows[i].tie);
        ax_config_fini(&c);
    }
}

static void rates_of_dropout(void **state)
{
    (void)state;
    static const char *const file = "model: {family: gpt2, dropout: 0.1, attn_dropout: 0.2}\n"
                                    "data: {train: x}\n";
    static const struct {
        const char *override;
        double embd, resid, attn;
    } cases[] = {{NULL, 0.1, 0.1, 0.2},
                 {"model.resid_dropout=0", 0.1, 0, 0.2},
                 {"model.dropout=0.5", 0.5, 0.5, 0.5}}; /* the command line overrides the file */
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_config c;
        assert_int_equal(load(file, cases[i].override ? 1 : 0, &cases[i].override, &c), AX_OK);
        assert_true(c.model.embd_dropout == cases[i].embd && c.model.resid_dropout == cases[i].resid &&
                    c.model.attn_dropout == cases[i].attn);
        ax_config_fini(&c);
    }
}

static void missing_file(void **state)
{
    (void)state;
    ax_config c;
    assert_int_equal(ax_config_load("no/such.yaml", NULL, 0, AX_CONFIG_TO_TRAIN, &c), AX_ERR_DATA);
    assert_non_null(strstr(ax_error_message(), "no/such.yaml"));
    ax_config_fini(&c);
}

static void dump_loads_back(void **state)
{
    (void)state;
    const char *overrides[] = {"train.recompute=3", "optim.lr=0.1", "data.train=[{path: a, weight: 0.3}, b]",
                               "train.resume=ckpt/step-3", "model.init_std=0.0123456789012345678"};
    ax_config a, b; /* pipe.cut is auto */
    ax_buf first = {0}, second = {0};
    assert_int_equal(load("model: {family: gpt2}\n", AX_COUNT(overrides), overrides, &a), AX_OK);
    assert_int_equal(ax_config_dump(&a, &first), AX_OK);
    assert_int_equal(load(first.data, 0, NULL, &b), AX_OK);
    assert_int_equal(ax_config_dump(&b, &second), AX_OK);
    /* Equal except for the comments, which say where each value came from. */
    for (char *l1 = first.data, *l2 = second.data; *l1 && *l2;
         l1 = strchr(l1, '\n') + 1, l2 = strchr(l2, '\n') + 1) {
        size_t n = strcspn(l1, "#\n");
        n -= l1[n] == '#';
        assert_memory_equal(l1, l2, n);
    }
    assert_true(b.train.recompute == 3 && b.optim.lr == 0.1 && b.model.init_std == 0.0123456789012345678);
    assert_true(b.data.train.count == 2 && b.data.train.items[0].weight == 0.3);
    assert_string_equal(a.data.train.items[1].path, b.data.train.items[1].path);
    assert_string_equal(a.train.resume, b.train.resume);
    assert_string_equal(a.run.dir, b.run.dir);
    assert_true(ax_config_given(&a, "optim.lr") && !ax_config_given(&a, "optim.clip"));
    ax_config_fini(&a);
    ax_config_fini(&b);
    ax_buf_fini(&first);
    ax_buf_fini(&second);
}

/* A dump has the runtime settings on which results depend, and no others. */
static void dumps_keep_some_runtime_settings(void **state)
{
    (void)state;
    const char *overrides[] = {"data.train=x", "runtime.pin=off"};
    ax_config c;
    ax_buf text = {0};
    assert_int_equal(load("model: {family: gpt2}\nruntime:\n  isa: avx2\n  log: trace\n  plans: p\n",
                          AX_COUNT(overrides), overrides, &c),
                     AX_OK);
    assert_string_equal(ax_option_place(c.set, "runtime.isa"), "t.yaml:3:8");
    assert_int_equal(ax_config_dump(&c, &text), AX_OK);
    assert_non_null(strstr(text.data, "runtime:\n  isa: avx2 # t.yaml:3:8\n"));
    assert_non_null(strstr(text.data, "/p\" # t.yaml:5:10\n"));
    assert_null(strstr(text.data, "log:"));
    assert_null(strstr(text.data, "pin:"));
    ax_config_fini(&c);
    ax_buf_fini(&text);
}

/* The warm-up is a number of steps or a percentage of train.steps, and may be longer than the run. */
static void warmups(void **state)
{
    (void)state;
    static const struct {
        const char *keys[2];
        int64_t steps;
    } cases[] = {{{"optim.warmup=5", "train.steps=3"}, 5},
                 {{"optim.warmup=2%", "train.steps=1000"}, 20},
                 {{"optim.warmup=2.5%", "train.steps=100"}, 3},
                 {{"optim.warmup=100%", "train.steps=7"}, 7},
                 {{"optim.warmup=0%", "train.steps=7"}, 0}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_config a, b;
        ax_buf text = {0};
        assert_int_equal(load("model: {family: gpt2}\ndata: {train: x}\n", 2, cases[i].keys, &a), AX_OK);
        assert_int_equal(ax_quota_of(&a.optim.warmup, a.train.steps), cases[i].steps);
        assert_int_equal(ax_config_dump(&a, &text), AX_OK);
        assert_int_equal(load(text.data, 0, NULL, &b), AX_OK);
        assert_true(a.optim.warmup.number == b.optim.warmup.number &&
                    a.optim.warmup.percent == b.optim.warmup.percent);
        ax_config_fini(&a);
        ax_config_fini(&b);
        ax_buf_fini(&text);
    }
}

/* Numbers that would overflow, alone or combined with others, are refused, and the message has the range. */
static void ranges_fit_types(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"run.keep_latest=4294967297", "run.keep_latest: must be from 0 to 1000000000, not \"4294967297\""},
        {"run.eval_batches=9223372036854775807", "run.eval_batches: must be from 0 to 1000000000"},
        {"run.checkpoint_interval=9223372036854775807", "run.checkpoint_interval: must be from 0"},
        {"train.weight_cache=9223372036854775807", "train.weight_cache: must be from 0 to"},
        {"train.seed=9223372036854775808", "does not fit into 64 bits"},
        {"data.train=[]", "data.train: the list is empty; give at least one value (training data: text"},
        {"train.weight_cache=-1", "train.weight_cache: must be from 0 to 1152921504606846976, not \"-1\""},
        {"optim.lr=1e39", "optim.lr: must be from 0 to 1e+30"},
        {"model.norm_eps=1e-46", "model.norm_eps: must be from 1e-30 to 1e+30"},
        {"model.init_std=1e39", "model.init_std: must be from 1e-30 to 1e+30"},
    };
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_config c;
        assert_int_equal(load("model: {family: gpt2}\ndata: {train: x}\n", 1, &cases[i][0], &c),
                         AX_ERR_USAGE);
        if (!strstr(ax_error_message(), cases[i][1]))
            assert_string_equal(ax_error_message(), cases[i][1]);
        ax_config_fini(&c);
    }
}

/* Finding the nearest legal batch takes less than the bound, in CPU time of this thread. A linear search
 * would take ten times that. */
static void nearest_batches_are_found_quickly(void **state)
{
    (void)state;
    ax_config c;
    double start = ax_cpu_now();
    static const char *const keys[] = {"train.global_batch=999999937", "train.micro_batch=500000000"};
    assert_int_equal(load("model: {family: gpt2}\ndata: {train: x}\n", 2, keys, &c), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "train.micro_batch=1 or 999999937"));
    assert_true(ax_cpu_now() - start < 0.2);
    ax_config_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contract_defaults),
        cmocka_unit_test(rules_over_keys),
        cmocka_unit_test(keys_of_other_programs),
        cmocka_unit_test(other_names_lead_to_keys),
        cmocka_unit_test(unreadable_text),
        cmocka_unit_test(data_is_required_for_training_only),
        cmocka_unit_test(families_have_defaults),
        cmocka_unit_test(rates_of_dropout),
        cmocka_unit_test(missing_file),
        cmocka_unit_test(dump_loads_back),
        cmocka_unit_test(dumps_keep_some_runtime_settings),
        cmocka_unit_test(warmups),
        cmocka_unit_test(ranges_fit_types),
        cmocka_unit_test(nearest_batches_are_found_quickly),
    };
    if (chdir(AXONN_BUILD_DIR))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
