#!/usr/bin/env python3
"""Writes assets/hugging_face_flags.yaml: scripts/hugging_face_flags.py FOLDER > assets/hugging_face_flags.yaml

FOLDER holds the unpacked wheels of transformers and trl. Nothing in them is imported or run.
"""

import ast
import json
import pathlib
import sys

HEAD = """\
# Arguments that HfArgumentParser makes from the dataclasses of Hugging Face's own packages, which a script imports and does
# not declare: name, type, default. Read from the sources of the versions named by scripts/hugging_face_flags.py. Other versions
# differ in few of them, and `downshift init` names the version in its report.
classes:"""

CLASSES = [
    ("TrainingArguments", "transformers", "transformers/training_args.py", None),
    ("Seq2SeqTrainingArguments", "transformers", "transformers/training_args_seq2seq.py", "TrainingArguments"),
    ("_BaseConfig", "trl", "trl/trainer/base_config.py", "TrainingArguments"),
    ("SFTConfig", "trl", "trl/trainer/sft_config.py", "_BaseConfig"),
    ("DPOConfig", "trl", "trl/trainer/dpo_config.py", "_BaseConfig"),
    ("ModelConfig", "trl", "trl/trainer/model_config.py", None),
    ("ScriptArguments", "trl", "trl/scripts/utils.py", None),
]


def fields(path, name):
    """Yields name, annotation and default of each argument of a dataclass."""
    tree = ast.parse(path.read_text())
    (cls,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    for node in cls.body:
        if not isinstance(node, ast.AnnAssign) or "init=False" in ast.unparse(node):
            continue
        default = node.value
        if isinstance(default, ast.Call):
            default = {keyword.arg: keyword.value for keyword in default.keywords}.get("default")
        try:
            value = None if default is None else ast.literal_eval(default)
        except ValueError:
            value = None
        yield node.target.id, ast.unparse(node.annotation), value


def kind(annotation):
    """Returns the kind of a value by its annotation."""
    plain = annotation.replace("Optional[", "").replace(" | None", "").rstrip("]")
    if "bool" in annotation and "str" not in annotation:
        return "boolean"
    if annotation.startswith("int") or plain == "int":
        return "integer"
    if "float" in plain and not any(word in plain for word in ("str", "dict", "list")):
        return "number"
    return "text"


def scalar(value):
    """Writes a default as YAML; a list or dictionary counts as none."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, (list, dict)):
        return "null"
    if isinstance(value, str):
        return value if value.isidentifier() and value != "no" else json.dumps(value)
    text = repr(value)
    if "e" in text and "." not in text:
        digits, exponent = text.split("e")
        text = f"{digits}.0e{int(exponent)}"
    return text


def main():
    folder = pathlib.Path(sys.argv[1])
    print(HEAD)
    for name, package, path, base in CLASSES:
        (info,) = folder.glob(f"{package}-*.dist-info")
        print(f"  {name}:\n    package: {package} {info.name.removesuffix('.dist-info').split('-')[1]}")
        if base:
            print(f"    inherits: {base}")
        print("    fields:")
        for field, annotation, default in fields(folder / path, name):
            print(f"      - [{field}, {kind(annotation)}, {scalar(default)}]")


main()
