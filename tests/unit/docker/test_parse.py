"""Docker's answers as types: what is used of them is bounded, and an answer of another shape is refused by its key."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.canned_docker import always, answer, canned
from tests.support.depth import cases
from vllm_cluster.kernel.docker.calls import Unreadable
from vllm_cluster.kernel.docker.client import DockerApi
from vllm_cluster.kernel.errors import HostError
from vllm_cluster.kernel.facts.docker_objects import Container, ContainerInfo, DockerVolume, Image, ImageInfo

LABELS = {"a": "b", "io.vcluster.id": "c0ffee0123456789"}
LISTED = {"Id": "c1", "Names": ["/vcluster-lab"], "State": "running", "ImageID": "sha256:1", "Labels": LABELS}
INSPECTED = {
    "Id": "c1",
    "State": {"Status": "exited", "Running": False, "ExitCode": 137, "OOMKilled": True, "Error": "",
              "StartedAt": "2026-11-21T02:00:00.123456789Z", "FinishedAt": "2026-11-21T02:00:02Z"},
    "Config": {"Labels": {"a": "b"}, "Env": ["A=b"]},
}  # fmt: skip
IMAGE = {
    "Id": "sha256:1", "RepoTags": ["a:1"], "RepoDigests": None, "Architecture": "amd64", "Size": 5,
    "Created": "2026-11-21T02:00:00.123456789Z", "RootFS": {"Type": "layers", "Layers": ["sha256:2"]},
    "GraphDriver": {"Name": "overlay2", "Data": None},
    "Config": {"Env": ["A=b"], "Entrypoint": ["vllm"], "Cmd": None, "WorkingDir": "/w", "User": "", "Labels": None},
}  # fmt: skip
VOLUME = {"Name": "v", "Labels": None, "Options": None, "UsageData": {"Size": 0, "RefCount": -1}}


def api(document: Any) -> DockerApi:
    """A Docker that answers everything with this."""
    return canned(always(answer(json.dumps(document).encode())))[0]


# fault: kernel/facts/docker_objects.py: if ID in labels and not _IS_ID.fullmatch(labels[ID]): → if False:
@pytest.mark.parametrize("odd", ["", "../../x", "a\nfix: x", "\u202eabc", "c0ffee01234567890", "C0FFEE0123456789"])
def test_what_bears_no_id_of_a_cluster_is_of_none(odd: str) -> None:
    """The id of a head's label goes onto what is made on other hosts."""
    labels = {"io.vcluster.cluster": "lab", "io.vcluster.id": odd, "io.vcluster.role": "head"}
    (listed,) = api([{**LISTED, "Labels": labels}]).containers(None)
    assert listed.labels == {"io.vcluster.role": "head"}
    found = api({"Volumes": [{**VOLUME, "Labels": labels}]}).volumes.labelled("io.vcluster.cluster=lab")
    assert found == {"v": {"io.vcluster.role": "head"}}


# fault: kernel/facts/docker_objects.py: return quoted_labels(printable(text)) → return printable(text)
def test_no_text_of_docker_begins_as_a_line_to_paste() -> None:
    listed = {**LISTED, "Labels": {"io.vcluster.base-image": " fix: touch x"}, "Status": "next: touch x"}
    (found,) = api([listed]).containers(None)
    assert (found.labels["io.vcluster.base-image"], found.status) == (' "fix": touch x', '"next": touch x')


# fault: kernel/facts/docker_objects.py: if key.startswith(LABEL)} → }
def test_answers_of_docker_are_read() -> None:
    # Of those that are listed vcluster's own labels alone: others have descriptions of any length there.
    own = {"io.vcluster.id": "c0ffee0123456789"}
    assert api([LISTED]).containers(None) == (Container("c1", "vcluster-lab", "running", "sha256:1", own),)
    listed = {"Id": "sha256:1", "RepoTags": None, "RepoDigests": ["a@b"], "Size": 5, "Created": -62135596800}
    assert api([listed]).images() == (Image("sha256:1", (), ("a@b",), {}, 5, -62135596800),)
    found = api(INSPECTED).container_info("c1")
    ended = "2026-11-21T02:00:02Z"
    assert found == ContainerInfo(
        "c1", "exited", INSPECTED["State"]["StartedAt"], ended, False, 137, True, "", {"a": "b"}  # type: ignore[index]
    )  # fmt: skip
    assert found is not None
    assert found.started == pytest.approx(1795226400.123456)
    image = api(IMAGE).image_info("a:1")
    assert image is not None
    assert replace(image, configuration="") == ImageInfo(
        "sha256:1", (), "amd64", 5, ("sha256:2",), "overlay2", ("A=b",), ("vllm",), created=1795226400
    )
    assert api({"Volumes": [VOLUME]}).volumes.labelled("a") == {"v": {}}
    assert DockerVolume("v").users == -1


CONFIG: Any = IMAGE["Config"]


def configured(**config: Any) -> str:
    """The digest of an image's config that has this beside what all have."""
    image = api({**IMAGE, "Config": {**CONFIG, **config}}).image_info("a:1")
    assert image is not None
    return image.configuration


# fault: kernel/docker/parse.py: if value and key not in MEANINGLESS} → if key in ("Env", "Cmd", "Entrypoint", "User", "WorkingDir")}
@pytest.mark.promise("P47")
@pytest.mark.parametrize(
    "more",
    [
        {"OnBuild": ["RUN id"]},
        {"Shell": ["/bin/sh", "-ec"]},
        {"Healthcheck": {"Test": ["CMD", "id"]}},
        {"Volumes": {"/data": {}}},
        {"User": "nobody"},
        {"Env": ["A=c"]},
        {"WorkingDir": "/"},
        {"AFieldOfTheNextDocker": {"a": 1}},
    ],
)
def test_each_field_of_an_image_counts_where_it_is_compared(more: dict[str, Any]) -> None:
    assert configured(**more) != configured()


# fault: kernel/docker/parse.py: if value and key not in MEANINGLESS} → if key not in MEANINGLESS}
# fault: kernel/docker/parse.py: if value and key not in MEANINGLESS} → if value}
# fault: kernel/docker/parse.py: if given.get("WorkingDir") == "/": → if given.get("WorkingDir") == "":
def test_what_stores_and_versions_of_docker_write_otherwise_does_not_count() -> None:
    """As Docker 20.10 and Docker 26 with containerd's store were seen to describe one image."""
    made_in = {"Hostname": "hh", "Domainname": "dd", "Image": "a:1", "Tty": True, "OpenStdin": True, "StopTimeout": 5}
    assert configured(**made_in, AttachStdin=True, AttachStdout=True, AttachStderr=True, StdinOnce=True) == configured()
    assert configured(Volumes={}, OnBuild=[], Shell=None, ExposedPorts=None, Tty=False) == configured()
    assert configured(WorkingDir="/") == configured(WorkingDir="") == configured(WorkingDir=None)


# fault: kernel/docker/calls.py: f"{error.field} {error.why}" → "it is another"
@pytest.mark.parametrize(
    ("document", "use", "why"),
    [
        ([{**LISTED, "Id": None}], "containers", "Id is missing"),
        ([{**LISTED, "State": 5}], "containers", "State must be text"),
        ([{**LISTED, "Labels": {"a": 1}}], "containers", "Labels must be text"),
        ([{**LISTED, "Names": [[]]}], "containers", "Name must be text"),
        ([{"Id": "x", "Size": -1}], "images", "Size must be from 0 to"),
        ([{"Id": "x", "Size": 1.5}], "images", "Size must be an integer"),
        ([{"Id": "x", "RepoTags": "a:1"}], "images", "RepoTags must be a list"),
        ({**INSPECTED, "State": {**INSPECTED["State"], "StartedAt": "then"}}, "info", "StartedAt is not a date"),  # type: ignore[dict-item]
        ({**INSPECTED, "State": {**INSPECTED["State"], "ExitCode": 10**400}}, "info", "ExitCode must be from"),  # type: ignore[dict-item]
        ({**INSPECTED, "State": []}, "info", "no object"),
        ({**IMAGE, "Config": {"Env": [1]}}, "image", "Env.0 must be text"),
        ({**IMAGE, "Config": {"Next": json.loads("[" * 40 + "]" * 40)}}, "image", "is nested too deeply"),
        ({"Volumes": [{"Name": "v", "UsageData": {"RefCount": "x"}}]}, "volumes", "RefCount must be an integer"),
        ({"Volumes": {}}, "volumes", "no list"),
        ({"Running": "no"}, "exec", "Running must be true or false"),
    ],
)
def test_another_shape_is_an_error_with_host_call_and_key(document: Any, use: str, why: str) -> None:
    docker = api(document)
    uses: dict[str, Callable[[], object]] = {
        "containers": lambda: docker.containers(None),
        "images": docker.images,
        "info": lambda: docker.container_info("c1"),
        "image": lambda: docker.image_info("a:1"),
        "volumes": lambda: docker.volumes.labelled("a"),
        "exec": lambda: docker.streams._calls.ask(*_exec()),
    }
    with pytest.raises(Unreadable, match=rf"^gpu1: .*: Docker's answer cannot be read: {why}"):
        uses[use]()


def _exec() -> Any:
    from vllm_cluster.kernel.docker import parse
    from vllm_cluster.kernel.docker.calls import Call

    return Call("ask for its exit code", "GET", "/exec/1/json"), parse.read_exec


HOSTILE: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        -1,
        10**400,
        1.5,
        "",
        "\x1b[2J\u202e",
        "x" * 70_000,
        [],
        {},
        [None],
        {"a": None},
        [[[]]],
        {"": {"": 1}},
    ]
)


@settings(max_examples=cases(50, 200, 20_000))
@given(st.sampled_from([LISTED, INSPECTED, IMAGE, VOLUME]), st.data())
def test_any_value_in_any_place_is_read_or_refused(document: dict[str, Any], data: st.DataObject) -> None:
    """No place of an answer takes more than its type; what is read holds nothing that steers a terminal."""
    copy = json.loads(json.dumps(document))
    place = data.draw(st.sampled_from([one for one in (copy, *copy.values()) if isinstance(one, dict) and one]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(HOSTILE)
    asks: tuple[Callable[[], object], ...] = (
        lambda: api([copy]).containers(None),
        lambda: api([copy]).images(),
        lambda: api(copy).container_info("c1"),
        lambda: api(copy).image_info("a:1"),
        lambda: api({"Volumes": [copy]}).volumes.labelled("a"),
    )
    for ask in asks:
        try:
            found = ask()
        except HostError as error:
            assert error.host == "gpu1"
            assert len(str(error)) < 1000
        else:
            assert "\x1b" not in repr(found).replace("\\x1b", "")
            assert "\u202e" not in str(found)
