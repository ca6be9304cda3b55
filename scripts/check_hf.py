"""Loads what downshift has exported with the real transformers, and where there is an adapter beside it
with the real peft, and says how far their logits are from those that downshift computed.

    check_hf.py MODEL [ADAPTER]

MODEL holds config.json, model.safetensors and expected.safetensors (tokens, logits); so does ADAPTER,
for the model with it. The last line is the largest difference, relative to the largest logit.
"""

import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def distance(folder, model):
    wanted = load_file(f"{folder}/expected.safetensors")
    with torch.no_grad():
        logits = model.eval()(input_ids=wanted["tokens"].long()).logits
    return ((logits - wanted["logits"]).abs().max() / wanted["logits"].abs().max()).item()


folder, *adapter = sys.argv[1:]
model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
wrong = [report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if report[key]]
assert not wrong, wrong
found = [distance(folder, model)]
if adapter:
    from peft import PeftModel

    found.append(distance(adapter[0], PeftModel.from_pretrained(model, adapter[0])))
print(max(found))
