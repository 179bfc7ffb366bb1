"""Failures of models and tokens: rows 60 to 70."""

from __future__ import annotations

from vllm_cluster.explain.failure import KnownFailure, cause, note

CHECK = "vcluster check"
FIT = "vcluster fit MODEL"

FAILURES = (
    KnownFailure(
        "60",
        "`is not a local folder and is not a valid model identifier`, no cached snapshot",
        "the model is not there: on this host, under this name",
        'model_cache: holds hub/models--ORG--NAME on every host; or HF_HUB_OFFLINE: "0" and network; check the name',
        FIT,
        (
            cause("is not a local folder and is not a valid"),
            cause("Repo id must be"),
            cause("Cannot find an appropriate cached snapshot folder"),
            cause("LocalEntryNotFoundError"),
            cause("RepositoryNotFoundError"),
            cause("OfflineModeIsEnabled"),
            cause("We couldn't connect to", r"couldn't connect to .{0,120} to load"),
            cause("No model architectures are specified"),
            cause("Unrecognized model in"),
            cause("Invalid repository ID or local directory specified"),
        ),
    ),
    KnownFailure(
        "61",
        "the copy was done in a second, and no weights are found",
        "links were copied instead of files (the hub's shared blobs), or only config files",
        "find MODEL -xtype l shows dead links; rsync --copy-unsafe-links, or copy hub/blobs too",
        CHECK,
        (
            cause("Cannot find any model weights with"),
            cause("No safetensors weights found"),
            cause("no .safetensors files"),
        ),
    ),
    KnownFailure(
        "62",
        "`401` or `403`, `gated repo`",
        "the licence was not accepted, or the token is missing, or only on another host",
        "accept the licence on the model's page; hf_token: env:HF_TOKEN in the inventory, then vcluster up",
        FIT,
        (
            cause("GatedRepoError"),
            cause("gated repo"),
            cause("You are trying to access a gated repo"),
            cause("Client Error", r"\b40[13] Client Error"),
            cause("/resolve/", r"\b40[13]\b"),
            cause("/api/models/", r"\b40[13]\b"),
            cause("Invalid user token"),
            cause("Invalid username or password", r"(?i)hugging|401"),
        ),
    ),
    KnownFailure(
        "63",
        "every host downloads the same model",
        "nothing tells it that the model is there",
        'environment: {HF_HUB_OFFLINE: "1"} once the model is on every host',
        silent="a download is no failure",
    ),
    KnownFailure(
        "64",
        "`Permission denied` in the model cache",
        "a container wrote there as root, or runs as a user who may not read it",
        "sudo chown -R OWNER MODEL_CACHE on that host",
        "",
        (
            cause("ermission denied", r"(?:hub/|huggingface|models--|\.cache|HF_HOME|\.locks|safetensors)"),
            cause("There was a problem when trying to write in your cache folder"),
        ),
    ),
    KnownFailure(
        "65",
        "half a file: `MetadataIncompleteBuffer`, `HeaderTooLarge`",
        "a download or copy was interrupted",
        "remove the broken file and download again: hf download MODEL; find MODEL_CACHE -name '*.incomplete'",
        CHECK,
        (
            cause("SafetensorError"),
            cause("deserializing header"),
            cause("MetadataIncompleteBuffer"),
            cause("incomplete metadata, file not fully covered"),
            cause("PytorchStreamReader failed"),
            cause("is not a valid JSON file"),
            cause("Consistency check failed", r"(?i)size|bytes"),
        ),
    ),
    KnownFailure(
        "66",
        "loading takes an hour",
        "every rank reads everything from one shared file system",
        "copy the model to local NVMe; -- --safetensors-load-strategy prefetch, or --load-format runai_streamer",
        CHECK,
        (note("Loading weights took", r"Loading weights took (?:[6-9]\d\d|\d{4,})(?:\.\d+)? seconds"),),
    ),
    KnownFailure(
        "67",
        "the file system is corrupt",
        "a block device is mounted on two hosts, or the disk is failing",
        "umount it on all but one host and fsck it; share files by NFS from that host",
        CHECK,
        (
            cause("EXT4-fs error"),
            cause("XFS", r"XFS \([^)]*\): .{0,120}(?:orruption|shutting down|Internal error)"),
            cause("Structure needs cleaning"),
            cause("I/O error", r"Errno 5\] Input/output|I/O error, dev|Buffer I/O error"),
            cause("Input/output error", r"Errno 5|os error 5"),
        ),
        host=True,
    ),
    KnownFailure(
        "68",
        "hosts hold different revisions of a model",
        "the branch moved between two downloads",
        "-- --revision COMMIT, and that commit on every host",
        CHECK,
        silent="the weights load; the answers are wrong",
    ),
    KnownFailure(
        "69",
        "`404`: `The model … does not exist` for clients",
        "clients ask for another name than the one that is served",
        "vcluster serve MODEL --name NAME; GET /v1/models lists the names",
        "",
        (note("does not exist", r"The model `[^`]{1,300}` does not exist"),),
    ),
    KnownFailure(
        "70",
        "a token stands in ps, docker inspect or a log",
        "it was given as an argument or in the environment",
        "hf_token: and api_key: of the inventory travel as files",
        silent="vcluster bundle takes out what looks like one; nothing fails by it",
    ),
)
