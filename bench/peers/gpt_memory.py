#!/usr/bin/env python3
"""Show which tensors PyTorch holds at the peak of a GPT training step in fp32, largest kinds first.

    gpt_memory.py --preset micro          # the same step as gpt_step.py times
    gpt_memory.py --preset gpt2 --top 5

Watches the storages of all tensors that operations return, in the second step, when AdamW's state
exists. Memory that an operation takes and frees within a call (scratch of libraries) is not seen.
Parameters, their gradients, AdamW's state and buffers have their own kinds. Each other storage is
named by the operation that made it and the phase of the step: forward, backward or update.
"""
import collections
import itertools
import weakref

import gpt_step
import process


def watch():
    """Return a dispatch mode that tracks live storages and keeps the list of those at the peak."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.phase = ""
            self.live, self.bytes = {}, 0  # storage's address: (name, bytes, serial number)
            self.peak, self.peak_bytes = [], 0
            self.serials = itertools.count()  # an address has several storages, one after another

        def add(self, tensor, name):
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self.live or storage.nbytes() == 0:
                return
            self.live[key] = (name, storage.nbytes(), next(self.serials))
            self.bytes += storage.nbytes()
            weakref.finalize(storage, self.remove, key)
            if self.bytes > self.peak_bytes:
                self.peak_bytes, self.peak = self.bytes, list(self.live.values())

        def remove(self, key):
            self.bytes -= self.live.pop(key)[1]

        def serial(self, tensor):
            entry = self.live.get(tensor.untyped_storage()._cdata)
            return entry and entry[2]

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(tensor, torch.Tensor):
                    name = str(function).removeprefix("aten.").split(".")[0]
                    self.add(tensor, f"{name}, {self.phase}")
            return result

    return Watch()


def main():
    args = gpt_step.arguments(
        lambda parser: parser.add_argument("--top", type=int, default=10, help="kinds to show"),
        description=__doc__, single_process=False, timed=False)
    process.before_torch(args.threads)
    import torch
    import gpt2
    from precision import adamw_options
    torch.set_num_threads(args.threads)
    config = gpt2.Config(args.layers, args.heads, args.width, args.context, args.vocab)
    model = gpt2.Gpt(config)
    gpt2.init(model)
    optimizer = torch.optim.AdamW(gpt2.weight_groups(list(model.parameters())),
                                  **adamw_options(args))

    def step(mode):
        tokens, targets = gpt2.batch(0, args.batch, config, None)
        mode.phase = "forward"
        loss = model(tokens, targets)
        mode.phase = "backward"
        loss.backward()
        mode.phase = "update"
        if args.clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        gradients = {mode.serial(p.grad) for p in model.parameters()}
        optimizer.zero_grad(set_to_none=True)
        return gradients

    mode = watch()
    step(mode)
    for parameter in model.parameters():
        mode.add(parameter, "parameters")
        for state in optimizer.state[parameter].values():
            mode.add(state, "AdamW's state")
    for buffer in model.buffers():
        mode.add(buffer, "buffers")
    with mode:
        gradients = step(mode)
    kinds = collections.Counter()
    for name, nbytes, serial in mode.peak:
        kinds["gradients" if serial in gradients else name] += nbytes
    print(f"{mode.peak_bytes / 2**20:.0f} MiB at the peak")
    for name, nbytes in kinds.most_common(args.top):
        print(f"{nbytes / 2**20:8.1f} MiB  {name}")


if __name__ == "__main__":
    main()
