import argparse


def save_and_remove_state_stepwise(args, accelerator, step_no):
    print(args, accelerator, step_no)


def add_sd_models_arguments(parser: argparse.ArgumentParser):
    # for pretrained models
    parser.add_argument("--v2", action="store_true", help="load Stable Diffusion v2.0 model")
    parser.add_argument("--v_parameterization", action="store_true", help="enable v-parameterization training")
    parser.add_argument("--pretrained_model_name_or_path", type=str, default=None, help="pretrained model to train")
    parser.add_argument("--tokenizer_cache_dir", type=str, default=None, help="directory for caching Tokenizer")


def add_dataset_arguments(parser, support_dreambooth: bool, support_caption: bool, support_caption_dropout: bool):
    # dataset common
    parser.add_argument("--train_data_dir", type=str, default=None, help="directory for train images")
    parser.add_argument("--shuffle_caption", action="store_true", help="shuffle comma-separated caption")
    parser.add_argument("--caption_extension", type=str, default=".caption", help="extension of caption files")
    parser.add_argument("--keep_tokens", type=int, default=0, help="keep heading N tokens when shuffling")
    parser.add_argument("--color_aug", action="store_true", help="enable weak color augmentation")
    parser.add_argument("--flip_aug", action="store_true", help="enable horizontal flip augmentation")
    parser.add_argument("--random_crop", action="store_true", help="enable random crop")
    parser.add_argument("--debug_dataset", action="store_true", help="show images for debugging (do not train)")
    parser.add_argument("--resolution", type=str, default=None, help="resolution in training ('size' or 'width,height')")
    parser.add_argument("--cache_latents", action="store_true", help="cache latents to main memory")
    parser.add_argument("--vae_batch_size", type=int, default=1, help="batch size for caching latents")
    parser.add_argument("--cache_latents_to_disk", action="store_true", help="cache latents to disk")
    parser.add_argument("--enable_bucket", action="store_true", help="enable buckets for multi aspect ratio training")
    parser.add_argument("--min_bucket_reso", type=int, default=256, help="minimum resolution for buckets")
    parser.add_argument("--max_bucket_reso", type=int, default=1024, help="maximum resolution for buckets")
    if support_dreambooth:
        parser.add_argument("--reg_data_dir", type=str, default=None, help="directory for regularization images")


def add_optimizer_arguments(parser: argparse.ArgumentParser):
    parser.add_argument("--optimizer_type", type=str, default="", help="Optimizer to use")
    parser.add_argument("--use_8bit_adam", action="store_true", help="use 8bit AdamW optimizer")
    parser.add_argument("--learning_rate", type=float, default=2.0e-6, help="learning rate")
    parser.add_argument("--max_grad_norm", default=1.0, type=float, help="Max gradient norm, 0 for no clipping")
    parser.add_argument("--optimizer_args", type=str, default=None, nargs="*", help="additional arguments")
    parser.add_argument("--lr_scheduler", type=str, default="constant", help="scheduler to use for learning rate")
    parser.add_argument("--lr_warmup_steps", type=int, default=0, help="Number of steps for the warmup")


def add_training_arguments(parser: argparse.ArgumentParser, support_dreambooth: bool):
    parser.add_argument("--output_dir", type=str, default=None, help="directory to output trained model")
    parser.add_argument("--output_name", type=str, default=None, help="base name of trained model file")
    parser.add_argument("--save_precision", type=str, default=None, choices=[None, "float", "fp16", "bf16"])
    parser.add_argument("--save_every_n_epochs", type=int, default=None, help="save checkpoint every N epochs")
    parser.add_argument("--save_every_n_steps", type=int, default=None, help="save checkpoint every N steps")
    parser.add_argument("--save_last_n_epochs", type=int, default=None, help="save last N checkpoints")
    parser.add_argument("--save_state", action="store_true", help="save training state additionally")
    parser.add_argument("--resume", type=str, default=None, help="saved state to resume training")
    parser.add_argument("--train_batch_size", type=int, default=1, help="batch size for training")
    parser.add_argument("--max_token_length", type=int, default=None, choices=[None, 150, 225])
    parser.add_argument("--mem_eff_attn", action="store_true", help="use memory efficient attention for CrossAttention")
    parser.add_argument("--xformers", action="store_true", help="use xformers for CrossAttention")
    parser.add_argument("--sdpa", action="store_true", help="use sdpa for CrossAttention (requires PyTorch 2.0)")
    parser.add_argument("--vae", type=str, default=None, help="path to checkpoint of vae to replace")
    parser.add_argument("--max_train_steps", type=int, default=1600, help="training steps")
    parser.add_argument("--max_train_epochs", type=int, default=None, help="training epochs (overrides max_train_steps)")
    parser.add_argument("--max_data_loader_n_workers", type=int, default=8, help="max num workers for DataLoader")
    parser.add_argument("--persistent_data_loader_workers", action="store_true", help="persistent DataLoader workers")
    parser.add_argument("--seed", type=int, default=None, help="random seed for training")
    parser.add_argument("--gradient_checkpointing", action="store_true", help="enable gradient checkpointing")
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1, help="Number of updates steps to accumulate")
    parser.add_argument("--mixed_precision", type=str, default="no", choices=["no", "fp16", "bf16"])
    parser.add_argument("--full_fp16", action="store_true", help="fp16 training including gradients")
    parser.add_argument("--clip_skip", type=int, default=None, help="use output of nth layer from back")
    parser.add_argument("--logging_dir", type=str, default=None, help="enable logging and output TensorBoard log")
    parser.add_argument("--log_with", type=str, default=None, choices=["tensorboard", "wandb", "all"])
    parser.add_argument("--noise_offset", type=float, default=None, help="enable noise offset with this value")
    parser.add_argument("--lowram", action="store_true", help="enable low RAM optimization")
    parser.add_argument("--sample_every_n_steps", type=int, default=None, help="generate sample images every N steps")
    parser.add_argument("--sample_prompts", type=str, default=None, help="file for prompts to generate sample images")
