#!/usr/bin/env bash
# Ctrl-C without mpirun: the progress line ends, and the program says which step it finished last,
# numbered as on the screen and in the log. Then the program ends by SIGINT, which a shell shows as
# 130. With --checkpoint, the program first saves a checkpoint. If SIGINT is ignored, as in the
# background jobs of a shell script, training continues, also with --checkpoint. If the terminal is
# closed (SIGHUP), a run with --checkpoint saves a checkpoint too, unless nohup has started it. A
# signal that comes before the first step of a run with --checkpoint is obeyed after this step.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
run=("$train_gpt" --data text.txt "${tiny[@]}" --steps 1000000 --eval-every 0 --log run.jsonl)

python3 - "${run[@]}" << 'PYTHON'
import json, os, pty, re, signal, subprocess, sys, threading, time
command = sys.argv[1:]
last_words = re.compile(r"^rank 0: told to end; last finished step (\d+)$", re.MULTILINE)

def steps_in_log():
    try:
        lines = open("run.jsonl").read().split("\n")[:-1]
    except FileNotFoundError:
        return []
    lines = [json.loads(line) for line in lines]
    return [line["step"] for line in lines if line["type"] == "step"]

def check_log(last):
    # The running step may have finished without being written to the log.
    steps = steps_in_log()
    assert steps == list(range(1, len(steps) + 1)), steps
    assert last in (steps[-1], steps[-1] + 1), (last, steps[-1])

# Runs the program in a terminal and types Ctrl-C.
child, terminal = pty.fork()
if child == 0:
    os.execv(command[0], command)
text = b""
pressed = False
while True:
    try:
        part = os.read(terminal, 65536)
    except OSError:  # Linux reports the end of the program in this way
        break
    if not part:
        break
    text += part
    if not pressed and b"step 3/1000000 " in text:
        os.write(terminal, b"\x03")
        pressed = True
_, status = os.waitpid(child, 0)
assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGINT, (status, text)
text = text.decode().replace("\r\n", "\n")
found = last_words.search(text)
assert found and text.endswith(found.group() + "\n"), text
shown = int(re.findall(r"step (\d+)/1000000 ", text)[-1])
assert int(found.group(1)) in (shown, shown + 1), text
check_log(int(found.group(1)))

# Sends SIGINT to the program while its standard error is a pipe.
os.remove("run.jsonl")
process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True)
while len(steps_in_log()) < 3:
    assert process.poll() is None
    time.sleep(0.05)
process.send_signal(signal.SIGINT)
_, errors = process.communicate()
assert process.returncode == -signal.SIGINT, (process.returncode, errors)
found = last_words.search(errors)
assert found, errors
check_log(int(found.group(1)))

# With --checkpoint the run is saved, and its report and its trace are written.
os.remove("run.jsonl")
saved = command + ["--checkpoint", "saved"]
process = subprocess.Popen(saved + ["--report", "run.html", "--trace", "trace.json"],
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True)
while len(steps_in_log()) < 3:
    assert process.poll() is None
    time.sleep(0.05)
process.send_signal(signal.SIGINT)
_, errors = process.communicate()
assert process.returncode == -signal.SIGINT, (process.returncode, errors)
stopped = re.search(r"stopped after step (\d+) of \d+; the same command goes on from (\S+)", errors)
assert stopped and os.path.exists(stopped.group(2) + "/manifest.json"), errors
assert int(stopped.group(1)) == steps_in_log()[-1] and not last_words.search(errors), errors
assert os.path.exists("run.html"), errors
with open("trace.json") as trace:
    assert {"step 1", "step 2"} < {event["name"] for event in json.load(trace)["traceEvents"]}

# Sends signals before the first step. The run first writes a message about the checkpoint that it
# resumes from. The pipe of standard error is full, so the run waits until the test reads the pipe.
def starting():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.write(writer, bytes(1 << 20))  # writes as much as the pipe can hold
    os.set_blocking(writer, True)
    process = subprocess.Popen(saved, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=writer,
                               preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    os.close(writer)
    deadline = time.time() + 60
    handles = False
    while True:
        if time.time() > deadline:
            process.kill()  # or it would go on when the pipe is closed
        assert process.poll() is None and time.time() < deadline, "SIGUSR1 has no handler"
        with open(f"/proc/{process.pid}/status") as file:
            status = dict(re.findall(r"^(\w+):\s*(\w+)", file.read(), re.MULTILINE))
        # The program does not sleep while it sets the handlers, so all of them are set.
        if handles and status["State"] == "S":
            return process, open(reader, "rb")
        handles = handles or int(status["SigCgt"], 16) >> (signal.SIGUSR1 - 1) & 1
        time.sleep(0.01)

for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    first = steps_in_log()[-1] + 1
    process, pipe = starting()
    process.send_signal(number)
    with pipe:
        errors = pipe.read().decode().lstrip("\0")
    assert process.wait() == (-number if number == signal.SIGINT else 0), (number, errors)
    assert f"stopped after step {first} of" in errors, (number, errors)
    assert ("saving after the first step" in errors) == (number == signal.SIGINT), errors
    assert steps_in_log()[-1] == first, (number, errors)
    assert os.path.exists(f"saved/step-{first:09}/manifest.json"), (number, errors)

# SIGUSR1 saves after the first step, and the run goes on.
first = steps_in_log()[-1] + 1
process, pipe = starting()
process.send_signal(signal.SIGUSR1)
reading = threading.Thread(target=pipe.read)
reading.start()
while not os.path.exists(f"saved/step-{first:09}/manifest.json") or steps_in_log()[-1] == first:
    assert process.poll() is None
    time.sleep(0.05)
process.terminate()
assert process.wait() == 0
reading.join()
pipe.close()

# Closes the terminal of a run with --checkpoint. The next progress line cannot be written.
os.remove("run.jsonl")
child, terminal = pty.fork()
if child == 0:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    closed = command + ["--checkpoint", "closed", "--report", "closed.html"]
    os.execv(closed[0], closed)
text = b""
while b"step 3/1000000 " not in text:
    text += os.read(terminal, 65536)
os.close(terminal)
_, status = os.waitpid(child, 0)
assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, status
assert os.path.exists(f"closed/step-{steps_in_log()[-1]:09}/manifest.json"), os.listdir("closed")
assert os.path.exists("closed.html")

# The background jobs of a shell script ignore SIGINT, and programs under nohup ignore SIGHUP.
for extra, number in (([], signal.SIGINT), (["--checkpoint", "ignored"], signal.SIGINT),
                      (["--checkpoint", "nohup"], signal.SIGHUP)):
    os.remove("run.jsonl")
    process = subprocess.Popen(command + extra, stdin=subprocess.DEVNULL, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    while len(steps_in_log()) < 1:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    before = len(steps_in_log())
    while len(steps_in_log()) < before + 3:
        assert process.poll() is None, process.returncode
        time.sleep(0.05)
    process.terminate()
    _, errors = process.communicate()
    ends = (0,) if extra else (128 + signal.SIGTERM, -signal.SIGTERM)
    assert process.returncode in ends, (process.returncode, errors)
    assert extra or last_words.search(errors), errors
PYTHON
