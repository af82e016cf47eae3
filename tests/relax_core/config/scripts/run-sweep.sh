# Several runs one after the other, without Ray; the first one counts.
. ./settings-that-do-not-exist.env
declare -A WIDTH=([small]=64 [large]=128)
SIZE=${SIZE-small}
for lr in 1e-6 5e-6; do
    CUDA_VISIBLE_DEVICES=0,1 OMP_NUM_THREADS=1 nohup torchrun --nproc-per-node 2 train_async.py \
        --lr $lr --hidden-size ${WIDTH[$SIZE]} --data {a,b}.jsonl \
        --multimodal-keys '{"image": "image"}' --note $'it\'s a\ttest' \
        --resource "{\"actor\": [1, ${#WIDTH[@]}]}" > log-$lr.txt 2>&1 &
done
wait
