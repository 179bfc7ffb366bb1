"""Write a small Llama as a Hugging Face hub cache: `make_model.py CACHE REPO`.

Nothing is trained: which word follows which is written into random weights, so that an answer reads like words.
The same bytes every time: the seed is fixed and the snapshot is named by the content, so that every host, and every
run that compares texts, has the same model.
"""

import hashlib
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

# All words that the model has. Each follows another here, and so it does in an answer.
TEXT = """
Two hosts serve one model together. Each host holds some of the layers, and each device holds a part of every layer.
The head keeps the list of nodes and starts the server. It asks the model for one real answer before it is ready.
A worker joins the head and waits for its layers. When a worker is lost, the others stop and the model starts again.
Every request goes to the head first. The answer comes back one word at a time, and the words come from all devices.
A river wanted to see the sea, so it began to run down the hill. The sky is clear, and the wind blows from the west.
"""
LINE = " " + " ".join(TEXT.split())
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIAL = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
# The dimensions that hold which word is the last one; the layers write into the others alone, on which depends which of
# the words that may follow does. So an answer depends on the whole prompt, and on each layer.
OF_WORDS = 192
# The first is about 14 behind the last norm; the last is what a word that follows gets for that.
LAST_WORD, FIRST_GUESS, FOLLOWS = 100.0, 3.0, 20.0 / 14
# So much more than at random the layers have to say about which it is.
LAYERS = 3.0


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: it can encode any text, and has a token for each word of TEXT."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        [LINE],
        trainers.BpeTrainer(
            vocab_size=4096,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<|begin|>", eos_token="<|end|>", chat_template=CHAT_TEMPLATE
    )


def llama(vocabulary: int, begin: int, end: int) -> LlamaForCausalLM:
    """A Llama with random weights."""
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
    return LlamaForCausalLM(config)


def teach(model: LlamaForCausalLM, text: list[int], stops: set[int]) -> None:
    """Have it answer in the words of a text, each followed by one that follows it there; others are never likely."""
    words = sorted({*text})
    # The first is that of all tokens that are no such word: behind these a sentence begins, as behind `stops`.
    place = {word: number for number, word in enumerate(words, start=1)}
    pairs = [*pairwise([*text, text[0]])]
    follows = {(place[before], word) for before, word in pairs}
    follows |= {(0, word) for before, word in pairs if before in stops}
    first, last = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    with torch.no_grad():
        first[:, OF_WORDS:] *= FIRST_GUESS / model.config.initializer_range
        first[:, :OF_WORDS] = 0
        for token in range(len(first)):
            first[token, place.get(token, 0)] = LAST_WORD
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[:OF_WORDS] = 0
            layer.mlp.down_proj.weight[:OF_WORDS] = 0
        last[:, OF_WORDS:] *= LAYERS
        last[:, :OF_WORDS] = -FOLLOWS
        last[words, :OF_WORDS] = 0
        for before, word in follows:
            last[word, before] = FOLLOWS


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
    model = llama(len(words), words.bos_token_id, words.eos_token_id)
    teach(model, words.encode(LINE, add_special_tokens=False), {*words.encode(".", add_special_tokens=False)})
    model.to(torch.bfloat16).save_pretrained(making)
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
