"""Records the system calls with which the Hugging Face Trainer saves one checkpoint.

    python record.py > hf_trainer.txt

Needs strace, torch, transformers and accelerate. One line for each call that changes the file system, in order:
`mkdir .`, `create NAME`, `resize NAME BYTES`, `write NAME BYTES`, `rename NAME NAME`, `unlink NAME`. Names are relative
to the folder of the checkpoint. The tests replay every prefix of the list: a process can be killed after each call.
"""

import os
import re
import subprocess
import sys
import tempfile
from datetime import date

STEP = 10
CALLS = (
    "open,openat,creat,close,write,writev,pwrite64,pwritev,ftruncate,truncate,fallocate,copy_file_range,sendfile,mkdir,"
    "mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,link,linkat,symlink,symlinkat,mmap"
)


def train():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    class Tokens(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            ids = torch.arange(index, index + 16) % 64
            return {"input_ids": ids, "labels": ids}

    shape = dict(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    arguments = TrainingArguments("out", max_steps=STEP, save_steps=STEP, report_to=[], use_cpu=True)
    Trainer(LlamaForCausalLM(LlamaConfig(**shape)), arguments, train_dataset=Tokens()).train()


def convert(trace, folder):
    names = {}  # (process, descriptor) -> name
    prefix = re.compile(rf'(?:{re.escape(os.getcwd())}/)?{re.escape(folder)}/?')

    def name(path):
        found = prefix.match(path)
        return (path[found.end() :] or ".") if found else None

    for line in trace:
        parsed = re.match(r"(\d+) +(\w+)\((.*)\) += (-?\d+)", line)
        if not parsed or parsed[4].startswith("-"):
            continue
        process, call, text, result = parsed[1], parsed[2], parsed[3], int(parsed[4])
        paths = [name(path) for path in re.findall(r'"((?:[^"\\]|\\.)*)"', text)[:2]]
        descriptor = text.split(",")[0]
        target = names.get((process, descriptor))
        if call in ("open", "openat", "creat"):
            names.pop((process, str(result)), None)
            if paths[0] and ("O_CREAT" in text or "O_TRUNC" in text or call == "creat"):
                names[process, str(result)] = paths[0]
                yield f"create {paths[0]}"
        elif call in ("mkdir", "mkdirat") and paths[0]:
            yield f"mkdir {paths[0]}"
        elif call.startswith("rename") and any(paths):
            yield f"rename {paths[0]} {paths[1]}"
        elif call in ("unlink", "unlinkat", "rmdir") and paths[0]:
            yield f"unlink {paths[0]}"
        elif call == "close":
            names.pop((process, descriptor), None)
        elif target and call == "ftruncate":
            yield f"resize {target} {text.split(', ')[1]}"
        elif target and call in ("write", "writev"):
            yield f"write {target} {result}"
        elif target:
            sys.exit(f"record.py does not know how to replay {call}: {line}")


def main():
    import accelerate
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        script = os.path.abspath(__file__)
        os.chdir(folder)
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES="")
        trace = ["strace", "-f", "-qq", "-s", "300", "-e", f"trace={CALLS}", "-o", "trace"]
        subprocess.run([*trace, sys.executable, script, "train"], check=True, env=environment, stdout=sys.stderr)
        calls = list(convert(open("trace", errors="replace"), f"out/checkpoint-{STEP}"))
    print(f"# {date.today()}: transformers {transformers.__version__}, torch {torch.__version__}, ", end="")
    print(f"accelerate {accelerate.__version__}; made by record.py")
    print("\n".join(calls))


train() if sys.argv[1:] == ["train"] else main()
