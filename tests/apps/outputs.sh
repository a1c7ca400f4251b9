#!/usr/bin/env bash
# A program refuses flags by which an output would overwrite an input or another output. It refuses
# them before it writes any file, with an error that names the flags. The paths may be links.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
run=("$train_gpt" "${tiny[@]}" --steps 1 --eval-every 1)
head -c 3000 text.txt > other.txt
ln -s text.txt link.txt
ln text.txt hard.txt
mkdir in
must_work "${run[@]}" --data text.txt --save in/model.safetensors
echo 'steps = 1' > run.ini
ln -s nowhere.jsonl dangling.jsonl
mkdir in/step-000000004
echo data | tee in/data.bin in/step-000000004/model.bin > in/u.data
before=$(find . -type f ! -name '*.log' -exec sha256sum {} + | sort)

for output in log trace save; do
  for name in text.txt link.txt hard.txt ./in/../text.txt "$PWD/text.txt"; do
    expect "--$output .* is what --data reads" "${run[@]}" --data text.txt "--$output" "$name"
  done
  expect "is what --val-data reads" "${run[@]}" --data text.txt --val-data other.txt \
    "--$output" other.txt
  expect "is what --config reads" "${run[@]}" --data text.txt --config run.ini "--$output" run.ini
  expect "--$output in/config.json is what --init's config.json reads" "${run[@]}" --data text.txt \
    --init in/model.safetensors "--$output" in/config.json
done
expect '--log in/model.safetensors is what --init reads' "${run[@]}" --data text.txt \
  --init in/model.safetensors --log in/model.safetensors
for pair in 'log trace' 'log save' 'trace save'; do
  read -r a b <<< "$pair"
  expect "--$a and --$b would write the same file" "${run[@]}" --data text.txt "--$a" new \
    "--$b" ./new
done
expect '--log and --trace would write the same file' "${run[@]}" --data text.txt \
  --log dangling.jsonl --trace nowhere.jsonl
expect "--log and --save's config.json would write the same file" "${run[@]}" --data text.txt \
  --log out/config.json --save out/model.safetensors
expect '--log and --trace would write' mpirun -n 2 "${run[@]}" --data text.txt --log new --trace new

# No output overwrites a data file in the folder of images or ratings that --data reads.
resnet=("$TESSERA_BIN/train_resnet" --steps 1 --batch 2 --micro-batch 2)
expect '--log in/data.bin is a data file in the folder that --data reads' "${resnet[@]}" --data in \
  --log in/data.bin
expect '--save-every in/step-000000004/model.bin is a data file in the folder that --data reads' \
  "${resnet[@]}" --data in --save in/model.bin --save-every 2
recommender=("$TESSERA_BIN/train_recommender" --steps 1 --batch 2 --micro-batch 2)
expect '--csv in/u.data is a data file in the folder that --data reads' "${recommender[@]}" \
  --data in --csv in/u.data
# An output in that folder is also refused if it is a new file whose name the reader would take for
# the name of a data file.
for name in data_batch_9.bin train.bin t10k-labels.idx1-ubyte.gz; do
  expect "--log in/$name has the name of a data file, and is in the folder that --data reads" \
    "${resnet[@]}" --data in --log "in/$name"
done
for name in ratings.csv new.inter; do
  expect "--csv in/$name has the name of a data file, and is in the folder that --data reads" \
    "${recommender[@]}" --data in --csv "in/$name"
done
# The log beside a report is an output, too.
same='the log beside it and --trace would write the same file'
expect "$same" "${resnet[@]}" --report new.html --trace ./new.jsonl
expect "$same" "${recommender[@]}" --report new.html --trace ./new.jsonl
expect '--trace .* is what --init reads' "${resnet[@]}" --init in/model.safetensors \
  --trace in/model.safetensors
# A dash as the path of an output is refused, because these outputs never go to standard output.
for output in log trace report csv tensorboard save checkpoint; do
  expect "--$output -: nothing is written to standard output" "${run[@]}" --data text.txt \
    "--$output" -
done
expect 'FILE -: nothing is written to standard output' "$TESSERA_BIN/checkpoint" export in -
expect 'DIR -: nothing is written to standard output' "$TESSERA_BIN/checkpoint" \
  import in.safetensors -

after=$(find . -type f ! -name '*.log' -exec sha256sum {} + | sort)
diff <(echo "$before") <(echo "$after") || fail "files were changed"

# Files that are not data may be written beside the data, and overwritten by the next run.
mkdir -p classes/train/{a,b}
python3 - << 'PYTHON'
import struct, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
image = (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", 32, 32, 8, 2, 0, 0, 0)) +
         chunk(b"IDAT", zlib.compress((b"\0" + bytes(96)) * 32)) + chunk(b"IEND", b""))
for name in ("a", "b"):
    for i in range(4):
        open(f"classes/train/{name}/{i}.png", "wb").write(image)
PYTHON
for _ in 1 2; do
  must_work "${resnet[@]}" --data classes --image-size 32 --eval-every 0 --log classes/run.jsonl \
    --save classes/model.safetensors
done
# If --data reads each folder as a class of images, no output is written into a class folder, even
# if the names of images have no ending such as .png. Nor does an output make a new class folder.
cp -r classes/train flat
for name in a b; do mv "flat/$name/0.png" "flat/$name/0"; done
before=$(find flat | sort; sha256sum flat/*/*)
into='where each folder is read as a class of images'
for output in 'log flat/a/0' 'save flat/b/0' 'trace flat/new/trace.json' 'tensorboard flat/a' \
  'checkpoint flat/saved' 'log classes/train/run.jsonl' 'trace classes/train/a/0.png'; do
  read -r flag path <<< "$output"
  if [[ $path == classes/* ]]; then data=classes; else data=flat; fi
  expect "--$flag $path \(would write in .*$into\|is a data file in the folder\)" "${resnet[@]}" \
    --data $data --image-size 32 "--$flag" "$path"
done
expect "--save-best flat/best/m.safetensors would write in flat, $into" mpirun -n 2 "${resnet[@]}" \
  --data flat --image-size 32 --save flat/m.safetensors --save-best --eval-every 1
[[ $(find flat | sort; sha256sum flat/*/*) == "$before" ]] || fail "images were changed"
# Training may continue on weights in place: --init and --save may name the same file.
must_work "${run[@]}" --data text.txt --init in/model.safetensors --save in/model.safetensors
# The config.json of --init is not written if --save names another file beside it: it may have
# members that Tessera does not write.
sed -i 's/"model_type"/"task_specific_params": {"beams": 4}, "model_type"/' in/config.json
cp in/config.json kept.json
must_work "${run[@]}" --data text.txt --init in/model.safetensors --save in/tuned.safetensors
cmp in/config.json kept.json
must_work "$generate" in/tuned.safetensors --tokens 3
must_work "${run[@]}" --data text.txt --log /dev/null
