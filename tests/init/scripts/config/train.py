# configurator.py executes this file before it reads the options of the command line.
out_dir = 'out-chars'
eval_interval = 50 * 5
batch_size = 64
gradient_accumulation_steps = 1
learning_rate = 1e-3
max_iters = 5000
