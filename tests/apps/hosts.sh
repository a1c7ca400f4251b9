#!/usr/bin/env bash
# ctest: TIMEOUT 400 PROCESSORS 1
# Two hosts, emulated on one machine by network namespaces with a link between them. Each host has
# its own name and, if the kernel has time namespaces, its own clock. Checks that
#  - training over both hosts gives the bits of a run on one rank, and its trace corrects the
#    difference between the hosts' clocks,
#  - a slow link that loses packets costs only time,
#  - after a cut of the link the job ends on both hosts, and relaunch resumes on the remaining host.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"

here=tessera-$$-a
there=tessera-$$-b
skip() { echo "skipped: $*"; exit 77; }
[[ -x $(command -v ip) ]] || skip "there is no ip (iproute2), which makes network namespaces"
[[ $(mpirun --version 2> /dev/null) == *"Open MPI"* ]] || skip "mpirun is not Open MPI's"
ip netns add "$here" 2> /dev/null || skip "network namespaces are not allowed here"
link=
clean_up() {
  for name in "$here" "$there"; do
    ip netns pids "$name" 2> /dev/null | xargs -r kill -KILL 2> /dev/null || true
    ip netns del "$name" 2> /dev/null || true
  done
  [[ -z $link ]] || kill "$link" 2> /dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT
ip netns add "$there"
ip link add "va$$" type veth peer name "vb$$" || skip "veth interfaces are not allowed here"
ip link set "va$$" netns "$here"
ip link set "vb$$" netns "$there"
for side in "$here va$$ 1" "$there vb$$ 2"; do
  read -r name interface number <<< "$side"
  ip -n "$name" addr add "10.213.7.$number/24" dev "$interface"
  ip -n "$name" link set lo up
  ip -n "$name" link set "$interface" up
  # With this setting TCP closes a connection if sent data is not acknowledged for about 13 s.
  # mpirun's keepalive settings below close an idle connection to a lost host after about 10 s.
  ip netns exec "$name" sh -c 'echo 5 > /proc/sys/net/ipv4/tcp_retries2'
done

# The command by which mpirun starts a process on the other host. The process gets that host's name
# and, if the kernel has time namespaces, a clock that differs from this host's.
clock=()
unshare --time --monotonic 3600 true 2> /dev/null && clock=(--time --monotonic 3600)
cat > agent << END
#!/bin/sh
shift
exec ip netns exec $there unshare --uts ${clock[*]} sh -c "hostname $there; \$*"
END
chmod +x agent
export OMPI_MCA_plm_rsh_agent=$work/agent OMPI_MCA_btl=tcp,self OMPI_MCA_orte_keep_fqdn_hostnames=1
# With these settings mpirun notices after 10 s that a daemon's host is gone.
export OMPI_MCA_oob_tcp_keepalive_time=4 OMPI_MCA_oob_tcp_keepalive_intvl=2
export OMPI_MCA_oob_tcp_keepalive_probes=3
# on_network PREFIX COMMAND...: runs COMMAND on this host. MPI uses the network PREFIX.0/24 only.
on_network() {
  OMPI_MCA_btl_tcp_if_include=$1.0/24 OMPI_MCA_oob_tcp_if_include=$1.0/24 \
    ip netns exec "$here" "${@:2}"
}
on_both() { on_network "$1" mpirun --host "$1.1:2,$1.2:2" -n 4 "${@:2}"; }

run=("$train_gpt" --data text.txt "${tiny[@]}" --threads 1 --log run.jsonl --save run.safetensors)
must_work "${run[@]}" --steps 8 --eval-every 4
as_first hosts "one rank"
for stage in 0 1 2 3; do
  must_work on_both 10.213.7 "${run[@]}" --steps 8 --eval-every 4 --stage $stage \
    --trace trace.json
  as_first hosts "two hosts, stage $stage"
  # In an aligned trace, no rank begins an exchange after another rank has ended it.
  python3 - << 'END'
import json
ranks = {}
for event in json.load(open("trace.json"))["traceEvents"]:
    if event["ph"] == "X" and event["name"] == "exchange":
        ranks.setdefault(event["pid"], []).append((event["ts"], event["ts"] + event["dur"]))
assert len(ranks) == 4, ranks.keys()
assert len({len(spans) for spans in ranks.values()}) == 1, "ranks have other numbers of exchanges"
slack_us = 2000  # clocks are aligned to about 2 ms
for number, spans in enumerate(zip(*ranks.values())):
    last_begin = max(begin for begin, _ in spans)
    first_end = min(end for _, end in spans)
    assert last_begin < first_end + slack_us, (number, spans)
END
done

# The link is cut during training, once there is a checkpoint to resume.
relaunch_log=relaunch.log
on_network 10.213.7 "$TESSERA_BIN/relaunch" --hosts 10.213.7.1:2,10.213.7.2:2 -- \
  "$train_gpt" --data text.txt "${tiny[@]}" --threads 1 --eval-every 0 --stage 2 --steps 1200 \
  --comm-timeout 4 --checkpoint cut --checkpoint-every 5 --log cut.jsonl \
  > stdout.log 2> $relaunch_log < /dev/null &
job=$!
steps_in() { grep -c '"type":"step"' "$1" 2> /dev/null || true; }
ready() { [[ $(steps_in cut.jsonl) -ge 20 && -n $(find cut -name 'step-?????????') ]]; }
for _ in $(seq 600); do
  ready && break
  sleep 0.1
done
ready || fail "no 20 steps and a checkpoint: $(cat $relaunch_log)"
ip -n "$there" link set "vb$$" down
begin=$SECONDS
while [[ -n $(ip netns pids "$there") ]] || ! grep -q "starting again" $relaunch_log; do
  ((SECONDS - begin <= 60)) ||
    fail "60 s after the cut: $(ip netns pids "$there"), $(cat $relaunch_log)"
  sleep 0.1
done
echo "everyone has ended $((SECONDS - begin)) s after the link was cut"
status=0
timeout 120 tail --pid=$job -f /dev/null || kill -KILL $job
wait $job || status=$?
[[ $status == 0 ]] || fail "exit code $status: $(cat $relaunch_log)"
lost=$(grep -E 'relaunch: .*starting again with 2 ranks' $relaunch_log || true)
for rank in 2 3; do  # the message may name the ranks in either order
  [[ $lost == *"rank $rank on 10.213.7.2 "* ]] ||
    fail "it does not name rank $rank of the other host: $(cat $relaunch_log)"
done
grep -q 'going on from cut/' $relaunch_log || fail "it began anew: $(cat $relaunch_log)"
digest_of() { grep -o '"digest":"[0-9a-f]*"' "$1" | tail -n 1; }
must_work "$train_gpt" --data text.txt "${tiny[@]}" --threads 1 --eval-every 0 --steps 1200 \
  --checkpoint alone --log alone.jsonl
[[ $(digest_of cut.jsonl) == "$(digest_of alone.jsonl)" ]] || fail "other bits after the cut"

# Trains over a slow link that loses packets.
"$TESSERA_BIN/slow_link" "$here" "$there" 20 1 > link.log 2>&1 &
link=$!
for _ in $(seq 100); do
  grep -q ready link.log && break
  if ! kill -0 $link 2> /dev/null; then
    grep -q '/dev/net/tun\|slow0' link.log || fail "the slow link: $(cat link.log)"
    echo "skipped, because the system has no interfaces for it: a slow link: $(cat link.log)"
    exit 0
  fi
  sleep 0.05
done
for side in "$here 1 2" "$there 2 1"; do
  read -r name own other <<< "$side"
  ip -n "$name" addr add "10.213.8.$own" peer "10.213.8.$other" dev slow0
  ip -n "$name" link set slow0 up
done
must_work on_both 10.213.8 "${run[@]}" --steps 8 --eval-every 4 --stage 1
as_first hosts "a link with 20 ms of delay and 1 % loss"
