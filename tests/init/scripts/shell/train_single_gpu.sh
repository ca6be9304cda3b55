#!/usr/bin/env bash
# Starts one of the configurations: ./train_single_gpu.sh NAME [ARGUMENT…]
set -euo pipefail
export TOKENIZERS_PARALLELISM=false

NAME=$1; shift
CUDA_VISIBLE_DEVICES=0 python -u train.py \
  --config "configs/$NAME.yaml" \
  --batch-size 16 --amp \
  "$@" 2>&1 | tee "logs/$NAME.log"
