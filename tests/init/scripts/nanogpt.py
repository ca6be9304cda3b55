"""Settings at the top level, overridden by configurator.py, as nanoGPT has them."""

import os
import torch

# -----------------------------------------------------------------------------
# I/O
out_dir = 'out'
eval_interval = 2000
eval_only = False
always_save_checkpoint = True
init_from = 'scratch' # 'scratch' or 'resume' or 'gpt2*'
# data
dataset = 'openwebtext'
gradient_accumulation_steps = 5 * 8 # used to simulate larger batch sizes
batch_size = 12 # if gradient_accumulation_steps > 1, this is the micro-batch size
block_size = 1024
# adamw optimizer
learning_rate = 6e-4 # max learning rate
max_iters = 600000 # total number of training iterations
grad_clip = 1.0 # clip gradients at this value, or disable if == 0.0
# system
device = 'cuda'
dtype = 'bfloat16' if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else 'float16'
compile = True # use PyTorch 2.0 to compile the model to be faster
# -----------------------------------------------------------------------------
config_keys = [k for k,v in globals().items() if not k.startswith('_') and isinstance(v, (int, float, bool, str))]
exec(open('configurator.py').read()) # overrides from command line or config file
config = {k: globals()[k] for k in config_keys}
# -----------------------------------------------------------------------------
tokens_per_iter = gradient_accumulation_steps * batch_size * block_size
if compile:
    print("compiling the model... (takes a ~minute)", os.getpid(), torch.compile)
