#!/usr/bin/env python3
"""Load saved weights with `transformers` and print the loss on given tokens.

    hf_roundtrip.py FOLDER --tokens 3,1,4,1,5,9          # one sequence
    hf_roundtrip.py out/weights.safetensors --tokens 3,1,4 --tokens 2,7,1

FOLDER holds config.json, and either model.safetensors or one .safetensors file of another name. If
a file is given instead of a folder, its folder must hold config.json.
The loss is the mean over all predictions of a token from the tokens before it. Prints {"loss",
"tensors"} as JSON; exits 1 if keys are missing or unexpected, 77 if torch or transformers is
absent.
"""
import argparse
import json
import pathlib
import sys
import tempfile

try:
    import torch
    from torch.nn import functional as F
    from transformers import GPT2LMHeadModel, logging
except ImportError as error:
    print(f"hf_roundtrip: skipped, {error}", file=sys.stderr)
    sys.exit(77)


def load(path):
    path = pathlib.Path(path)
    files = [path] if path.is_file() else (
        sorted(path.glob("model.safetensors")) or sorted(path.glob("*.safetensors")))
    if len(files) != 1:
        raise SystemExit(f"hf_roundtrip: {path} holds {len(files)} .safetensors files, expected 1")
    with tempfile.TemporaryDirectory() as folder:  # from_pretrained needs the names below
        for name, source in (("model.safetensors", files[0]),
                             ("config.json", files[0].parent / "config.json")):
            (pathlib.Path(folder) / name).symlink_to(source.resolve())
        return GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--tokens", action="append", required=True,
                        type=lambda text: [int(t) for t in text.split(",")])
    args = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    model, info = load(args.path)
    faults = {key: sorted(names) for key, names in info.items() if names}
    if faults:
        print(json.dumps(faults))
        sys.exit(1)
    total, count = 0.0, 0
    with torch.no_grad():
        for sequence in map(torch.tensor, args.tokens):
            logits = model.eval()(sequence[None, :-1]).logits[0]
            total += F.cross_entropy(logits, sequence[1:], reduction="sum").item()
            count += len(sequence) - 1
    print(json.dumps({"loss": total / count, "tensors": len(list(model.parameters()))}))


if __name__ == "__main__":
    main()
