#!/usr/bin/env bash
# Checks that TensorBoard's own reader finds the log's losses, learning rates, step times and
# gradient norms, and the run's settings. They must be in the events that the run writes, and in
# those that `report` makes from the log. Without the Python package tensorboard, the test is
# skipped with a message. TESSERA_PYTHON may name another Python that has the package.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
python=${TESSERA_PYTHON:-python3}
"$python" -c 'import tensorboard' 2> /dev/null ||
  { echo "skipped: needs the Python package tensorboard"; exit 77; }
run=(--data text.txt "${tiny[@]}" --steps 20 --warmup 1 --eval-every 10
  --norms-every 5 --checkpoint saved)
# The second run resumes after step 12, where the first run ended. TensorBoard must show each step
# once.
ranks 2 "${run[@]}" --steps 12 --resume-changed steps --tensorboard events --log run.jsonl
ranks 3 "${run[@]}" --resume-changed steps --tensorboard events --log run.jsonl
# A second conversion replaces the values of the first.
for _ in 1 2; do must_work "$TESSERA_BIN/report" run.jsonl --tensorboard converted; done
"$python" - << 'PYTHON'
import json, struct
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
lines = [json.loads(line) for line in open("run.jsonl")]
f32 = lambda x: struct.unpack("f", struct.pack("f", x))[0]
for folder in ("events", "converted"):
    events = EventAccumulator(folder, size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    events.Reload()
    for kind, name, tag in (("step", "loss", "train/loss"), ("step", "lr", "train/lr"),
                            ("step", "step_ms", "speed/step_ms"),
                            ("eval", "val_loss", "eval/val_loss")):
        logged = {line["step"]: f32(line[name]) for line in lines if line["type"] == kind}
        shown = {event.step: event.value for event in events.Scalars(tag)}
        assert shown == logged, (folder, tag, shown, logged)
        assert len(events.Scalars(tag)) == len(logged), (folder, tag)
    norms = {line["step"]: line["norms"] for line in lines if line["type"] == "norms"}
    shown = {event.step: event.histogram_value for event in events.Histograms("gradient_norms")}
    assert list(shown) == list(norms) == [5, 10, 15, 20], (list(shown), list(norms))
    for step, histogram in shown.items():
        values = list(norms[step].values())
        assert histogram.num == len(values) == sum(histogram.bucket)
        assert abs(histogram.sum - sum(values)) < 1e-6 * sum(values)
        assert histogram.min == min(values) and histogram.max == max(values)
    kind = events.Histograms("gradient_norms/attn.c_attn.weight")[0].histogram_value
    assert kind.num == 2  # one for each layer
    text = events.Tensors("run")[0].tensor_proto.string_val[0].decode()
    assert "| stage | 2 |" in text and "| model.layers | 2 |" in text, text
PYTHON
