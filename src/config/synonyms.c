/* Names that other programs give to keys and flags: transformers' TrainingArguments and configuration
 * classes, TRL, PEFT, axolotl, LLaMA-Factory, unsloth, Megatron-LM, DeepSpeed, torchtitan, nanoGPT,
 * llama.cpp, vLLM. A message about an unknown key says what is written here. A name of this table must be no
 * key of axonn's. */
#include "axonn/config.h"

static const ax_option_synonym synonyms[] = {
    /* the model */
    {"model_name_or_path|base_model|pretrained_model_name_or_path|model_id|model_path|checkpoint_dir|"
     "init_from|load",
     "model.from"},
    {"config_name|hf_config|config_path", "model.config"},
    {"model_type|architecture|arch|model_class", "model.family"},
    {"num_hidden_layers|num_layers|n_layer|n_layers|depth", "model.layers"},
    {"hidden_size|n_embd|d_model|dim|embed_dim|hidden_dim|width", "model.hidden"},
    {"num_attention_heads|n_head|n_heads|num_heads", "model.heads"},
    {"num_key_value_heads|n_kv_heads|n_kv_head|num_query_groups|num_kv_heads", "model.kv_heads"},
    {"kv_channels|head_size|d_head", "model.head_dim"},
    {"intermediate_size|ffn_hidden_size|n_inner|d_ff|ffn_dim|mlp_dim", "model.ffn"},
    {"vocab_size|padded_vocab_size|n_vocab", "model.vocab"},
    {"max_seq_length|max_seq_len|max_length|sequence_len|sequence_length|seq_length|block_size|cutoff_len|"
     "context_length|context_window|max_position_embeddings|n_positions|n_ctx|ctx_size|"
     "model_max_length|max_sequence_length",
     "model.seq_len"},
    {"hidden_act|activation_function|act_fn", "model.activation"},
    {"sliding_window|window_size", "model.window"},
    {"rotary_base|rope_freq_base", "model.rope_theta"},
    {"tie_word_embeddings|tie_embeddings|untie_embeddings_and_output_weights", "model.tie"},
    {"initializer_range|init_method_std", "model.init_std"},
    {"rms_norm_eps|layer_norm_epsilon|layernorm_epsilon|norm_epsilon", "model.norm_eps"},
    {"attention_dropout|attn_pdrop", "model.attn_dropout"},
    {"resid_pdrop|hidden_dropout|hidden_dropout_prob", "model.resid_dropout"},
    {"embd_pdrop|embedding_dropout", "model.embd_dropout"},
    /* mixtures of experts */
    {"num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts", "model.experts"},
    {"num_experts_per_tok|num_experts_per_token|moe_top_k|moe_router_topk|router_topk|moe_k", "model.top_k"},
    {"moe_intermediate_size|moe_ffn_hidden_size|moe_hidden_dim|expert_hidden_dim", "model.expert_ffn"},
    {"norm_topk_prob|route_norm", "model.renormalize"},
    {"decoder_sparse_step|moe_layer_freq|interleave_moe_layer_step", "model.sparse_step"},
    {"mlp_only_layers|first_k_dense_replace|n_dense_layers",
     "model.dense_layers: [0, ...], numbers of blocks"},
    {"router_aux_loss_coef|moe_aux_loss_coeff|aux_loss_coef|aux_loss_coeff|load_balance_coeff",
     "moe.balance"},
    {"moe_z_loss_coeff|router_z_loss_coef|z_loss_coeff", "moe.z_loss"},
    /* low-rank adapters */
    {"lora|peft|adapter|peft_config|lora_config|finetuning_type|train_type|use_peft|use_lora",
     "tune.method: lora"},
    {"lora_r|lora_rank|lora_dim|r", "tune.rank"},
    {"lora_alpha", "tune.alpha"},
    {"lora_dropout", "tune.dropout"},
    {"use_rslora|peft_use_rslora", "tune.rslora"},
    {"layers_to_transform|lora_layers_to_transform|peft_layers_to_transform|lora_layers", "tune.layers"},
    {"modules_to_save|lora_modules_to_save|additional_target", "tune.targets: [all, embed, head]"},
    {"target_modules|lora_target|lora_target_modules|lora_target_linear", "tune.targets"},
    /* data */
    {"dataset|datasets|dataset_name|dataset_path|train_file|train_files|train_data|train_data_path|"
     "data_path|train_dataset|data_files|input_bin",
     "data.train"},
    {"validation_file|validation_files|val_file|valid_file|valid_data_path|val_data|eval_dataset|"
     "eval_file|test_datasets|input_val_bin|val_set_size",
     "data.valid"},
    {"tokenizer_name|tokenizer_path|tokenizer_name_or_path|tokenizer_model|vocab_file|tokenizer_type",
     "data.tokenizer"},
    {"text_column|text_field|dataset_text_field|json_keys|field|text_column_name", "data.text_key"},
    {"chat_template|prompt_template|conversation_template|chat_template_name", "data.template"},
    {"train_on_inputs|completion_only_loss|assistant_only_loss|train_on_prompt|roles_to_train|"
     "mask_prompt|mask_inputs",
     "data.loss"},
    {"packing|sample_packing|pack_sequences|pad_to_sequence_len|eval_sample_packing|multipack",
     "data.pack: documents"},
    {"reset_attention_mask|reset_position_ids|eod_mask_loss|cross_doc_attention|document_mask|"
     "neat_packing",
     "data.mask_documents"},
    {"shuffle|data_shuffle|shuffle_dataset", "data.order"},
    /* how much, and in which pieces */
    {"epochs|num_train_epochs|num_epochs|max_epochs|n_epochs|train_epochs",
     "data.train: [{path: FILE, epochs: N}]"},
    {"max_steps|train_iters|max_iters|num_iterations|total_steps|num_training_steps|iterations|"
     "training_steps|max_train_steps",
     "train.steps"},
    {"per_device_train_batch_size|micro_batch_size|micro_batch_per_gpu|train_micro_batch_size_per_gpu|"
     "batch_size|device_train_microbatch_size|local_batch_size|device_batch_size",
     "train.micro_batch"},
    {"gradient_accumulation_steps|grad_accum|grad_accum_steps|gradient_accumulation|"
     "accumulate_grad_batches",
     "train.global_batch: train.micro_batch x grid.data x grid.z x the accumulation steps"},
    {"global_batch_size|train_batch_size|total_batch_size|effective_batch_size", "train.global_batch"},
    {"bf16|fp16|fp32|torch_dtype|dtype|mixed_precision|param_dtype|amp", "train.precision"},
    {"grad_accum_dtype|grad_reduce_dtype|reduce_dtype|accumulate_allreduce_grads_in_fp32",
     "train.grad_dtype"},
    {"gradient_checkpointing|activation_checkpointing|activation_checkpoint|recompute_granularity|"
     "recompute_activations|use_gradient_checkpointing|checkpoint_activations|selective_ac_option",
     "train.recompute"},
    {"data_seed|random_seed|manual_seed", "train.seed"},
    {"resume_from_checkpoint|auto_resume|auto_resume_from_checkpoints|load_checkpoint", "train.resume"},
    /* the optimizer */
    {"learning_rate|max_lr|peak_lr|base_lr", "optim.lr"},
    {"min_learning_rate|lr_min|eta_min|min_lr_ratio|final_lr_fraction|lr_end", "optim.min_lr"},
    {"lr_scheduler_type|lr_scheduler|lr_decay_style|scheduler|decay_type|lr_schedule", "optim.schedule"},
    {"warmup_steps|warmup_iters|lr_warmup_iters|num_warmup_steps|lr_warmup_steps|warmup_iterations",
     "optim.warmup: N"},
    {"warmup_ratio|lr_warmup_fraction|warmup_fraction|warmup_pct|lr_warmup_ratio", "optim.warmup: P%"},
    {"decay_ratio|lr_wsd_decay_iters|lr_cooldown|cooldown|warmdown_iters|warmdown_ratio", "optim.decay"},
    {"max_grad_norm|clip_grad|gradient_clipping|grad_clip|grad_norm_clip|max_norm|gradient_clip_val",
     "optim.clip"},
    {"adam_beta1|adam_beta2|beta1|beta2", "optim.betas: [B1, B2]"},
    {"adam_epsilon|adam_eps|epsilon|optim_eps", "optim.eps"},
    {"wd|adam_weight_decay|l2", "optim.weight_decay"},
    {"optimizer_name|optimizer_type|optim_type", "optim.name"},
    /* ranks */
    {"tensor_model_parallel_size|tensor_parallel_size|tensor_parallel_degree|tp|tp_size|tp_degree", "grid.x"},
    {"pipeline_model_parallel_size|pipeline_parallel_size|pipeline_parallel_degree|pp|pp_size|pp_degree",
     "grid.pipe"},
    {"data_parallel_size|data_parallel_degree|dp|dp_size|ddp|data_parallel_replicate_degree|"
     "dp_replicate",
     "grid.data"},
    {"expert_model_parallel_size|expert_parallel_size|expert_parallel_degree|ep|ep_size", "grid.expert"},
    {"fsdp|fsdp_size|fully_shard|data_parallel_shard_degree|fsdp_config|dp_shard|sharding_strategy",
     "grid.z"},
    {"zero_stage|zero_optimization|zero_optimization_stage|use_distributed_optimizer|deepspeed", "zero"},
    {"cpu_offload|optimizer_cpu_offload|offload_optimizer|optimizer_offload|enable_cpu_offload",
     "offload.optimizer: host (or file)"},
    {"nvme_path|offload_dir|offload_folder", "offload.dir"},
    {"buffer_size|sub_group_size", "offload.bucket"},
    {"virtual_pipeline_model_parallel_size|num_layers_per_virtual_pipeline_stage|pipeline_chunks",
     "pipe.chunks"},
    {"pipeline_parallel_schedule|pp_schedule", "pipe.schedule"},
    {"nproc_per_node|nproc|num_processes|n_gpus|num_gpus|np|world_size|ngpus", "--ranks N"},
    {"hostfile|nodes|node_list", "--hosts LIST"},
    /* the run */
    {"output_dir|out_dir|save_dir|logging_dir|dump_folder|checkpoint_folder|save", "run.dir"},
    {"save_steps|save_interval|save_freq|save_every|checkpoint_every|checkpoint_interval_steps",
     "run.checkpoint_interval"},
    {"save_total_limit|keep_latest_k|max_checkpoints|keep_last_n|keep_last", "run.keep_latest"},
    {"eval_steps|evaluation_steps|eval_freq|eval_every|val_check_interval|val_loss_every|validation_freq",
     "run.eval_interval"},
    {"eval_iters|max_eval_batches|limit_eval_batches|val_max_steps|eval_max_batches", "run.eval_batches"},
    {"logging_steps|log_freq|log_every|logging_interval|log_every_n_steps", "run.log_interval"},
    {"distributed_timeout_minutes|ddp_timeout|comm_timeout|init_timeout_seconds", "watchdog.timeout"},
    {"num_threads|nthreads|omp_num_threads|cpu_threads", "threads"},
    {"profile|profiler|enable_profiling|trace_dir|profiling", "run.trace"},
    /* generation */
    {"max_new_tokens|n_predict|max_gen_len|max_completion_tokens", "--max-tokens N"},
    {"temp", "--temperature T"},
    {"topk", "--top-k K"},
    {"topp|nucleus", "--top-p P"},
    {"do_sample|greedy|sample", "--temperature T (0: always the likeliest token)"},
    {"minp", "--min-p P"},
    {"repeat_penalty|rep_penalty", "--repetition-penalty X"},
    {"num_return_sequences|num_samples|n", "--samples N"},
    {"stop_token_ids|eos_token_id|stop_ids", "--stop ID,ID,..."},
    {"ignore_eos", "--ignore-end"},
    /* pruning */
    {"sparsity|pruning_ratio|prune_ratio|sparsity_ratio", "--density F (1 - sparsity)"},
    {"interactive|conversation|cnv", "--chat"},
    {"input_ids|prompt_tokens|token_ids", "--tokens ID,ID,..."},
    {"random_seed|rng_seed", "--seed S"},
};

const ax_option_synonym *ax_config_synonyms(size_t *count)
{
    *count = AX_COUNT(synonyms);
    return synonyms;
}
