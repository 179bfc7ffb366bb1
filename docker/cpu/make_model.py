"""Write a small random Llama as a Hugging Face hub cache: `make_model.py CACHE REPO`.

The same bytes every time: the seed is fixed and the snapshot is named by the content, so that every host, and every
run that compares texts, has the same model.
"""

import hashlib
import shutil
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXT = """
A cluster is one thing made of many. It is up when every rank is there and the endpoint has answered; else it is not.
The first host is the head. The head keeps the list of nodes, starts the server and asks it for one real answer.
The other hosts are workers. A worker joins the head, offers its devices and waits to be told which layers are its own.
Tensor parallelism splits every layer over the devices of one host, because they must talk after each of them.
Pipeline parallelism gives each host some of the layers, because hosts need to talk only once between their parts.
What is the weather like today? The weather is fine, the sky is clear and the wind blows gently from the west.
How many hosts are in the cluster? There are two hosts in the cluster, and each of them carries two devices.
Write a short story about a river. Once upon a time a river wanted to see the sea, and so it began to run downhill.
"""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIAL = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: it can encode any text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=512,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<|begin|>", eos_token="<|end|>", chat_template=CHAT_TEMPLATE
    )


def llama(vocabulary: int, begin: int, end: int) -> LlamaForCausalLM:
    """Random weights, large enough that the likeliest token is likeliest by far: layouts can then be compared."""
    torch.manual_seed(20_000)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.1,
        bos_token_id=begin,
        eos_token_id=end,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def digest(folder: Path) -> str:
    """Forty hex digits over names and contents, as a revision of a hub repository has them."""
    content = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        content.update(file.name.encode() + b"\0" + file.read_bytes())
    return content.hexdigest()[:40]


def main(cache: Path, repo: str) -> int:
    """Make the snapshot, then name it."""
    home = cache / "hub" / f"models--{repo.replace('/', '--')}"
    making = home / "snapshots" / "making"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    words = tokenizer()
    words.save_pretrained(making)
    llama(len(words), words.bos_token_id, words.eos_token_id).save_pretrained(making)
    for file in making.iterdir():
        file.chmod(0o644)
    revision = digest(making)
    target = making.with_name(revision)
    if target.exists():
        shutil.rmtree(making)
    else:
        making.rename(target)
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / "main").write_text(revision)
    sys.stdout.write(f"{repo} {revision}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
