"""Trains a LoRA, in the style of kohya's sd-scripts: one parser, filled by many functions of an imported module."""

import argparse
import library.train_util as train_util
from library import config_util


class NetworkTrainer:
    def train(self, args):
        if args.save_state:
            train_util.save_and_remove_state_stepwise(args, None, 0)
        print(config_util.ConfigSanitizer, args)


def setup_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()

    train_util.add_sd_models_arguments(parser)
    train_util.add_dataset_arguments(parser, True, True, True)
    train_util.add_training_arguments(parser, True)
    train_util.add_optimizer_arguments(parser)

    parser.add_argument("--no_metadata", action="store_true", help="do not save metadata in output model")
    parser.add_argument(
        "--save_model_as",
        type=str,
        default="safetensors",
        choices=[None, "ckpt", "pt", "safetensors"],
        help="format to save the model (default is .safetensors)",
    )
    parser.add_argument("--unet_lr", type=float, default=None, help="learning rate for U-Net")
    parser.add_argument("--text_encoder_lr", type=float, default=None, nargs="*", help="learning rate for Text Encoder")
    parser.add_argument("--network_weights", type=str, default=None, help="pretrained weights for network")
    parser.add_argument("--network_module", type=str, default=None, help="network module to train")
    parser.add_argument("--network_dim", type=int, default=None, help="network dimensions")
    parser.add_argument("--network_alpha", type=float, default=1, help="alpha for LoRA weight scaling")
    parser.add_argument("--network_dropout", type=float, default=None, help="Drops neurons out of training every step")
    parser.add_argument("--network_args", type=str, default=None, nargs="*", help="additional arguments for network")
    parser.add_argument("--network_train_unet_only", action="store_true", help="only training U-Net part")
    parser.add_argument("--network_train_text_encoder_only", action="store_true", help="only training Text Encoder part")
    parser.add_argument("--training_comment", type=str, default=None, help="arbitrary comment string stored in metadata")
    parser.add_argument("--dim_from_weights", action="store_true", help="automatically determine dim (rank) from weights")
    parser.add_argument("--scale_weight_norms", type=float, default=None, help="Scale the weight of each key pair")
    parser.add_argument("--base_weights", type=str, default=None, nargs="*", help="weights to merge into the model")
    return parser


if __name__ == "__main__":
    parser = setup_parser()
    args = parser.parse_args()
    trainer = NetworkTrainer()
    trainer.train(args)
