#!/usr/bin/env bash
# Opens reports in a headless browser: their scripts run to the end, and the numbers of their tables
# are those of the logs. Without Chromium the test is skipped.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
browser=$(command -v chromium || command -v chromium-browser || true)
[[ -n $browser ]] || { echo "skipped: needs chromium"; exit 77; }
report=$TESSERA_BIN/report
train_resnet=$TESSERA_BIN/train_resnet
train_recommender=$TESSERA_BIN/train_recommender

ranks 2 --data text.txt "${tiny[@]}" --steps 30 --eval-every 10 --report gpt.html --norms-every 5
must_work "$train_resnet" --steps 4 --batch 16 --micro-batch 16 --eval-every 2 --report images.html
must_work mpirun -n 2 "$train_recommender" --steps 20 --eval-every 10 --report ratings.html
alone --data text.txt "${tiny[@]}" --steps 3 --eval-every 0 --micro-batch 12 --report one.html
must_work "$report" gpt.jsonl gpt.jsonl --names one,two --out both.html
"$browser" --version > /dev/null 2>&1 || { echo "skipped: $browser does not start"; exit 77; }
for page in gpt one images ratings both; do
  timeout 100 "$browser" --headless --no-sandbox --disable-gpu --virtual-time-budget=5000 \
    --user-data-dir="$work/browser" --dump-dom "file://$work/$page.html" > "$page.dom" 2> dom.log ||
    fail "$page: $(tail -5 dom.log)"
  grep -q 'data-ready="true"' "$page.dom" || fail "$page: the page's script did not end"
done

cat > check.py << 'PYTHON'
import html.parser, json
class Page(html.parser.HTMLParser):
    """The page's tables, as lists of rows, by the heading or caption above them. Also all texts."""
    def __init__(self, text):
        super().__init__()
        self.tables, self.texts, self.title, self.rows, self.cell = {}, [], "", None, None
        self.heading = None
        self.feed(text)
    def handle_starttag(self, tag, attributes):
        if tag in ("h2", "figcaption"): self.heading = ""
        if tag == "table": self.rows = []
        if tag == "tr": self.rows.append([])
        if tag in ("td", "th"): self.cell = ""
        if tag == "script": self.cell = None
    def handle_endtag(self, tag):
        if tag in ("h2", "figcaption"): self.title, self.heading = self.heading, None
        if tag == "table":
            self.tables.setdefault(self.title, []).append(self.rows)
            self.rows = None
        if tag in ("td", "th"):
            self.rows[-1].append(self.cell)
            self.cell = None
    def handle_data(self, data):
        if self.cell is not None: self.cell += data
        elif self.heading is not None: self.heading += data
        self.texts.append(data)
    def table(self, title, which=0):
        found = [key for key in self.tables if key.startswith(title)]
        assert found, (title, list(self.tables))
        return {row[0]: row[1:] for row in self.tables[found[0]][which]}
def value(text):
    return float(text.replace(",", ""))
def close(text, number):
    return abs(value(text) - number) <= 6e-5 * abs(number) + 1e-12
def log(path):
    lines = [json.loads(line) for line in open(path)]
    return lambda kind: [line for line in lines if line["type"] == kind]

page, of = Page(open("gpt.dom").read()), log("gpt.jsonl")
losses = [line["loss"] for line in of("step")]
first, least, largest, last = page.table("Loss")["loss"]
assert close(first, losses[0]) and close(least, min(losses)), (first, losses[0])
assert close(largest, max(losses)) and close(last, losses[-1])
assert close(page.table("Loss")["validation loss"][3], of("eval")[-1]["val_loss"])
assert close(page.table("Norm of the gradient")["grad norm"][3], of("step")[-1]["grad_norm"])
for rank in of("summary")[0]["ranks"]:
    memory = page.table("rank %d" % rank["rank"], 0)
    for name, of_category in rank["memory"].items():
        assert list(map(value, memory[name])) == [of_category["planned"], of_category["peak"]]
    traffic = page.table("rank %d" % rank["rank"], 1)
    for purpose, sent in rank["traffic"].items():
        assert value(traffic[purpose][1]) == sent["measured"], purpose
# "Who holds what" lists what each rank holds. The parameters are in column 0, and the shard of the
# optimizer state is in column 2.
held = page.table("Who holds what")
memory = of("summary")[0]["ranks"][0]["memory"]
assert value(held["rank 0"][0]) == memory["parameters"]["planned"]
assert value(held["rank 0"][2]) == memory["optimizer_state"]["planned"]
waits = page.table("The timeline of step 3")
for rank in of("timeline")[0]["ranks"]:
    length, waited = map(value, waits["rank %d" % rank["rank"]][:2])
    assert abs(length - rank["length_us"] / 1000) < 0.001 and 0 < waited <= length, waits
assert page.table("Settings")["stage"] == ["2"]

# A single rank with one micro-batch a step has no memory for gradients beside that of their sums.
page, of = Page(open("one.dom").read()), log("one.jsonl")
held = page.table("Who holds what")
assert held["bytes"] == ["parameters", "sums of gradients", "optimizer state"], held
assert value(held["rank 0"][1]) == of("summary")[0]["ranks"][0]["memory"]["gradients"]["peak"]

page, of = Page(open("images.dom").read()), log("images.jsonl")
assert close(page.table("Evaluation: top1")["top1"][3], of("eval")[-1]["top1"])
confusion = of("confusion")[0]
right = sum(n for truth, guess, n in confusion["counts"] if truth == guess)
assert sum(n for _, _, n in confusion["counts"]) == confusion["images"]
assert abs(right / confusion["images"] - of("eval")[-1]["top1"]) < 1e-6
assert any("%d of" % right in text for text in page.texts)
assert len(of("mistakes")[0]["images"]) == 24
assert open("images.dom").read().count("<canvas") == 24

page, of = Page(open("ratings.dom").read()), log("ratings.jsonl")
assert close(page.table("Evaluation: rmse")["rmse"][3], of("eval")[-1]["rmse"])
page = Page(open("both.dom").read())
assert "two, loss (equal to one)" in page.table("Loss"), page.table("Loss")
PYTHON
python3 check.py
