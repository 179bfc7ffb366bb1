"""What Docker owes us: the fake Docker of the simulation beside the real one, call by call."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import docker_api
from tests.support.docker_api import LABEL, REPOSITORY, SECONDS, Docker, packed, unpacked
from tests.support.sim.engine import EMPTY_CONFIG
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.docker.calls import NotFound
from vllm_cluster.kernel.docker.log_frames import LogFrames, Position
from vllm_cluster.kernel.errors import CommandFailed, HostError
from vllm_cluster.kernel.node.secret_files import EMPTY_IMAGE, some_image

NOWHERE = "contract-there-is-no-such-thing"


@pytest.fixture(scope="module", params=["fake", "real"])
def shared(request: pytest.FixtureRequest) -> Iterator[Docker]:
    """Each Docker in turn."""
    docker = docker_api.fake() if request.param == "fake" else docker_api.real()
    yield docker
    docker.remove_image()


@pytest.fixture
def docker(shared: Docker) -> Iterator[Docker]:
    """A Docker, left as it was found."""
    yield shared
    shared.clean()
    shared.close()


def refused(answer: docker_api.Answer, status: int) -> str:
    """The reason of a refusal."""
    assert answer.status == status, answer.body
    assert "application/json" in answer.headers["content-type"]
    return str(answer.json["message"])


# ---- containers


def test_containers_are_listed_by_label(docker: Docker) -> None:
    made, running = docker.create("one", "exit 0"), docker.run("two", "sleep 60")
    for wanted in (LABEL, f"{LABEL}={docker.label}"):
        filters = json.dumps({"label": [wanted]})
        rows = docker.ask("GET", "/containers/json", all=1, filters=filters)
        assert rows.status == 200
        mine = {row["Id"]: row for row in rows.json if row["Labels"].get(LABEL) == docker.label}
        assert set(mine) == {made, running}
        row = mine[made]
        assert row["Names"] == [f"/{docker.name('one')}"]
        assert row["Labels"] == docker.labels
        assert row["ImageID"].startswith("sha256:")
        assert (row["Image"], row["State"], mine[running]["State"]) == (docker.image, "created", "running")
    filters = json.dumps({"label": [f"{LABEL}={docker.label}"]})
    assert [row["Id"] for row in docker.ask("GET", "/containers/json", filters=filters).json] == [running]
    filters = json.dumps({"label": [f"{LABEL}=other"]})
    assert docker.ask("GET", "/containers/json", all=1, filters=filters).json == []
    rows = docker.ask("GET", "/containers/json", all=1).json
    assert {made, running} <= {row["Id"] for row in rows}


def test_a_container_is_found_by_name_by_id_and_by_the_beginning_of_an_id(docker: Docker) -> None:
    made = docker.create("one", "exit 0", Env=["A=1"])
    for reference in (docker.name("one"), made, made[:12]):
        info = docker.ask("GET", f"/containers/{reference}/json")
        assert info.status == 200
        assert (info.json["Id"], info.json["Name"]) == (made, f"/{docker.name('one')}")
        assert info.json["Image"].startswith("sha256:")
        assert {"Status": "created", "ExitCode": 0, "OOMKilled": False}.items() <= info.json["State"].items()
        assert info.json["State"]["StartedAt"] == "0001-01-01T00:00:00Z"
        config = info.json["Config"]
        assert (config["Labels"], config["Image"], config["Tty"]) == (docker.labels, docker.image, False)
        assert config["Entrypoint"] + config["Cmd"] == ["/bin/sh", "-c", "exit 0"]
        assert "A=1" in config["Env"]
    assert NOWHERE in refused(docker.ask("GET", f"/containers/{NOWHERE}/json"), 404)
    assert docker.client.container_info(NOWHERE) is None


def test_a_name_is_given_once(docker: Docker) -> None:
    made = docker.create("one", "exit 0")
    body = {"Image": docker.image, "Cmd": ["/bin/sh"], "Labels": docker.labels}
    reason = refused(docker.ask("POST", "/containers/create", json_body=body, name=docker.name("one")), 409)
    assert reason.startswith(f'Conflict. The container name "/{docker.name("one")}" is already in use by container')
    assert made in reason
    with pytest.raises(CommandFailed, match="is already in use") as caught:
        docker.client.create(docker.name("one"), body)
    assert caught.value.returncode == 409


def test_a_container_runs_no_check_that_its_image_brings(docker: Docker) -> None:
    docker.client.create(docker.name("one"), {"Image": docker.image, "Cmd": ["/bin/sh"], "Labels": docker.labels})
    made = docker.ask("GET", f"/containers/{docker.name('one')}/json")
    assert made.json["Config"]["Healthcheck"] == {"Test": ["NONE"]}


def test_a_container_needs_an_image_that_is_there(docker: Docker) -> None:
    body = {"Image": f"{NOWHERE}:1"}
    reason = refused(docker.ask("POST", "/containers/create", json_body=body, name=docker.name("one")), 404)
    assert reason == f"No such image: {NOWHERE}:1"
    with pytest.raises(NotFound):
        docker.client.create(docker.name("one"), body)


def test_start_stop_and_restart_return_whether_they_changed_anything(docker: Docker) -> None:
    made = docker.create("one", "sleep 60")
    steps = [("stop", 304), ("start", 204), ("start", 304), ("stop", 204), ("stop", 304), ("restart", 204)]
    states = ["created", "running", "running", "exited", "exited", "running"]
    for (step, status), state in zip(steps, states, strict=True):
        more = {} if step == "start" else {"t": 0}
        answer = docker.ask("POST", f"/containers/{made}/{step}", **more)
        assert (answer.status, answer.body) == (status, b""), step
        assert docker.ask("GET", f"/containers/{made}/json").json["State"]["Status"] == state, step
    for step in ("start", "stop", "restart"):
        assert NOWHERE in refused(docker.ask("POST", f"/containers/{NOWHERE}/{step}"), 404)


def test_what_runs_is_removed_by_force_alone(docker: Docker) -> None:
    made = docker.run("one", "sleep 60")
    assert "running" in refused(docker.ask("DELETE", f"/containers/{made}"), 409)
    assert docker.ask("DELETE", f"/containers/{made}", force=1, v=1).status == 204
    assert NOWHERE in refused(docker.ask("DELETE", f"/containers/{NOWHERE}", force=1), 404)
    assert docker.ask("GET", f"/containers/{made}/json").status == 404
    docker.client.remove(made)


def test_a_container_is_waited_for(docker: Docker) -> None:
    made = docker.run("one", "exit 7")
    answer = docker.ask("POST", f"/containers/{made}/wait")
    assert (answer.status, answer.json["StatusCode"]) == (200, 7)
    state = docker.ask("GET", f"/containers/{made}/json").json["State"]
    assert (state["Status"], state["ExitCode"]) == ("exited", 7)
    assert state["StartedAt"] > "2000"
    assert docker.ask("POST", f"/containers/{made}/start").status == 204
    for query in ({}, {"condition": "removed"}):
        assert NOWHERE in refused(docker.ask("POST", f"/containers/{NOWHERE}/wait", **query), 404)


def test_a_log_is_framed_and_has_an_end(docker: Docker) -> None:
    made = docker.ended("one", "echo first; echo second >&2; echo third")
    whole = docker.ask("GET", f"/containers/{made}/logs", stdout=1, stderr=1)
    assert whole.status == 200
    assert sorted(whole.frames) == [(1, b"first\n"), (1, b"third\n"), (2, b"second\n")]
    last = docker.ask("GET", f"/containers/{made}/logs", stdout=1, stderr=1, tail=1)
    assert len(last.text.splitlines()) == 1
    assert sorted(docker.client.logs(made).split()) == ["first", "second", "third"]
    silent = docker.ended("two", "exit 0")
    assert docker.ask("GET", f"/containers/{silent}/logs", stdout=1, stderr=1).body == b""
    assert NOWHERE in refused(docker.ask("GET", f"/containers/{NOWHERE}/logs", stdout=1), 404)


def test_a_log_is_read_on_over_one_connection(docker: Docker) -> None:
    made = docker.ended("one", "echo first; echo second")
    position, found, client = Position(), list[bytes](), docker.client
    for _ in range(3):
        frames = LogFrames()
        with client.streams.log(made, since=position.resume(), seconds=SECONDS) as pieces:
            for piece in pieces:
                found += [text for _, text in position.fresh(frames.feed(piece))]
        assert len(client._calls.pool._idle) == 1
    assert found == [b"first", b"second"]


# ---- files


def test_files_go_in_and_come_out(docker: Docker) -> None:
    made = docker.create("one", "exit 0")
    answer = docker.ask("PUT", f"/containers/{made}/archive", packed(("opt/file", b"content")), path="/")
    assert (answer.status, answer.body) == (200, b"")
    there = docker.ask("GET", f"/containers/{made}/archive", path="/opt/file")
    (entry,) = unpacked(there.body)
    assert (there.status, entry.name, entry.size, entry.mode & 0o777) == (200, "file", 7, 0o640)
    stat = json.loads(base64.b64decode(there.headers["x-docker-container-path-stat"]))
    assert (stat["name"], stat["size"], stat["linkTarget"]) == ("file", 7, "")
    assert docker.client.read_file(made, "/opt/file") == b"content"
    assert docker.client.read_file(made, "/opt/file", 3) == b"con"
    docker.ask("PUT", f"/containers/{made}/archive", packed(("file", b"other")), path="/opt")
    assert docker.client.read_file(made, "/opt/file") == b"other"


def test_a_file_that_is_not_there(docker: Docker) -> None:
    made = docker.create("one", "exit 0")
    reason = refused(docker.ask("GET", f"/containers/{made}/archive", path="/nope/file"), 404)
    assert reason == f"Could not find the file /nope/file in container {made}"
    assert docker.client.read_file(made, "/nope/file") is None
    assert docker.ask("PUT", f"/containers/{made}/archive", packed(("file", b"")), path="/nope").status == 404
    assert NOWHERE in refused(docker.ask("GET", f"/containers/{NOWHERE}/archive", path="/"), 404)
    assert NOWHERE in refused(docker.ask("PUT", f"/containers/{NOWHERE}/archive", packed(), path="/"), 404)


def test_a_link_comes_as_itself(docker: Docker) -> None:
    made = docker.create("one", "exit 0")
    docker.ask(
        "PUT",
        f"/containers/{made}/archive",
        packed(("opt/blobs/x", b"content"), ("opt/a/link", "../blobs/x")),
        path="/",
    )
    there = docker.ask("GET", f"/containers/{made}/archive", path="/opt/a/link")
    (entry,) = unpacked(there.body)
    assert (entry.name, entry.issym(), entry.linkname) == ("link", True, "../blobs/x")
    assert docker.client.read_file(made, "/opt/a/link") == b"content"


def test_a_read_only_volume_takes_no_file(docker: Docker) -> None:
    name = docker.name("volume")
    docker.ask("POST", "/volumes/create", json_body={"Name": name, "Labels": docker.labels})
    mount = {"Type": "volume", "Source": name, "Target": "/kept", "ReadOnly": True, "VolumeOptions": {"Labels": {}}}
    made = docker.create("one", "exit 0", HostConfig={"Mounts": [mount]})
    answer = docker.ask("PUT", f"/containers/{made}/archive", packed(("file", b"")), path="/kept")
    # 500 of Docker 20.10, 400 later, 403 in its documentation.
    assert "read-only" in refused(answer, answer.status)
    assert answer.status in (400, 403, 500)
    body = {"HostConfig": {"Mounts": [{**mount, "ReadOnly": False}]}}
    door = docker.create("two", "exit 0", **body)
    docker.client.put_files(door, "/kept", {"file": (b"content", 0o600)})
    assert docker.client.read_file(made, "/kept/file") == b"content"


# ---- programs


def command(docker: Docker, *argv: str) -> tuple[bytes, str, int | None]:
    """What `docker` prints on both outputs, and its exit code."""
    stream = docker.transport.open_stream(["docker", *argv], Deadline.after(SECONDS))
    stream.settimeout(SECONDS)
    out = b""
    while data := stream.recv(1 << 16):
        out += data
    ended = out, stream.stderr_tail().strip(), stream.exit_code()
    stream.close()
    return ended


def test_a_program_in_a_container_that_runs(docker: Docker) -> None:
    made = docker.run("one", "sleep 60")
    script = "echo out; echo error >&2; exit 3"
    assert command(docker, "exec", "--interactive", made, "/bin/sh", "-c", script) == (b"out\n", "error", 3)


def test_no_program_where_nothing_runs(docker: Docker) -> None:
    made = docker.create("one", "exit 0")
    out, error, code = command(docker, "exec", "--interactive", made, "/bin/sh", "-c", "exit 0")
    assert (out, error.startswith("Error response from daemon: "), code) == (b"", True, 1)
    assert "is not running" in error
    out, error, code = command(docker, "exec", "--interactive", NOWHERE, "/bin/sh", "-c", "exit 0")
    assert (out, error.startswith("Error"), error.endswith(f": No such container: {NOWHERE}"), code) == (
        b"",
        True,
        True,
        1,
    )


def test_a_program_in_a_container_of_its_own(docker: Docker) -> None:
    attached = {"OpenStdin": True, "StdinOnce": True, "AttachStdin": True, "AttachStdout": True, "AttachStderr": True}
    once = {"AutoRemove": True, "LogConfig": {"Type": "none"}}
    made = docker.create("one", "echo out; echo error >&2; exit 3", **attached, HostConfig=once)
    assert command(docker, "start", "--attach", "--interactive", made) == (b"out\n", "error", 3)
    assert docker.client.container_info(made) is None


# ---- images


def test_images_by_name_and_id(docker: Docker) -> None:
    rows = docker.ask("GET", "/images/json")
    (row,) = [row for row in rows.json if docker.image in (row["RepoTags"] or ())]
    assert (rows.status, row["Id"][:7]) == (200, "sha256:")
    assert set(row) >= {"Labels", "RepoDigests"}
    for reference in (docker.image, row["Id"]):
        info = docker.ask("GET", f"/images/{reference}/json")
        assert (info.status, info.json["Id"]) == (200, row["Id"])
        assert docker.image in info.json["RepoTags"]
        assert info.json["Config"].keys() >= {*EMPTY_CONFIG, "Labels"}
        assert {key: info.json["Config"][key] for key in EMPTY_CONFIG} == EMPTY_CONFIG
        # By this an image is found again among others, also where another store gives it another id.
        found = docker.client.image_info(reference)
        assert found
        assert (found.created, found.architecture) == (row["Created"], "amd64")
    reason = refused(docker.ask("GET", f"/images/{NOWHERE}/json"), 404)
    assert reason.endswith(f"No such image: {NOWHERE}:latest")
    assert docker.client.image_info(NOWHERE) is None


def test_an_image_gets_another_name(docker: Docker) -> None:
    tag = docker.label
    for _ in range(2):
        answer = docker.ask("POST", f"/images/{docker.image}/tag", repo=REPOSITORY, tag=tag)
        assert (answer.status, answer.body) == (201, b"")
    docker.client.tag(docker.image, REPOSITORY, tag)
    assert docker.client.image_info(f"{REPOSITORY}:{tag}") == docker.client.image_info(docker.image)
    assert NOWHERE in refused(docker.ask("POST", f"/images/{NOWHERE}/tag", repo=REPOSITORY, tag=tag), 404)


def recipe(*lines: str) -> bytes:
    """A build context that holds a Dockerfile."""
    return packed(("Dockerfile", "\n".join(lines).encode() + b"\n"))


def build(docker: Docker, context: bytes, base: str | None = None) -> docker_api.Answer:
    arguments = json.dumps({"BASE": base or docker.image, "RAY": "2.56.1"})
    more: dict[str, Any] = {"buildargs": arguments, "labels": json.dumps(docker.labels), "networkmode": "none"}
    return docker.ask("POST", "/build", context, t=f"{REPOSITORY}:{docker.label}", rm=1, forcerm=1, **more)


def test_a_build_streams_lines_and_names_an_image(docker: Docker) -> None:
    answer = build(docker, recipe("ARG BASE", "FROM ${BASE}", "ARG RAY", "RUN echo $RAY > /ray"))
    assert (answer.status, answer.headers["transfer-encoding"]) == (200, "chunked")
    assert all("error" not in line for line in answer.lines)
    assert answer.body.endswith(b"\r\n")
    assert {"stream": f"Successfully tagged {REPOSITORY}:{docker.label}\n"} in answer.lines
    info = docker.client.image_info(f"{REPOSITORY}:{docker.label}")
    assert info
    assert info.labels == docker.labels


def test_a_build_that_fails_reports_it_inside_the_stream(docker: Docker) -> None:
    context = recipe("ARG BASE", "FROM ${BASE}", "RUN exit 3")
    answer = build(docker, context)
    reason = "The command '/bin/sh -c exit 3' returned a non-zero code: 3"
    assert answer.status == 200
    assert answer.lines[-1] == {"errorDetail": {"code": 3, "message": reason}, "error": reason}
    with pytest.raises(CommandFailed, match=r"cannot build .*returned a non-zero code: 3"):
        docker.client.build(context, f"{REPOSITORY}:{docker.label}", {"BASE": docker.image}, {}, Deadline.after(30))
    answer = build(docker, recipe("ARG BASE", "FROM ${BASE}"), f"localhost:1/{NOWHERE}:1")
    assert answer.status == 200
    assert set(answer.lines[-1]) == {"error", "errorDetail"}


def test_a_build_needs_a_recipe(docker: Docker) -> None:
    answer = build(docker, packed(("file", b"")))
    assert "Dockerfile" in refused(answer, 500)


# ---- volumes


def test_a_volume_keeps_its_first_labels(docker: Docker) -> None:
    name, other = docker.name("volume"), {LABEL: docker.label, "other": "label"}
    first = docker.ask("POST", "/volumes/create", json_body={"Name": name, "Labels": docker.labels})
    assert (first.status, first.json["Name"], first.json["Labels"]) == (201, name, docker.labels)
    again = docker.ask("POST", "/volumes/create", json_body={"Name": name, "Labels": other})
    # A Docker that was restarted since answers None here.
    assert (again.status, again.json["Labels"] in (docker.labels, None)) == (201, True)
    info = docker.ask("GET", f"/volumes/{name}")
    assert (info.status, info.json["Name"], info.json["Labels"]) == (200, name, docker.labels)
    docker.client.volumes.create(name, docker.labels)
    with pytest.raises(HostError, match="exists but does not belong to this cluster"):
        docker.client.volumes.create(name, other)


def test_volumes_are_listed_by_label_and_by_a_part_of_the_name(docker: Docker) -> None:
    names = [docker.name("volume-1"), docker.name("volume-2")]
    docker.ask("POST", "/volumes/create", json_body={"Name": docker.name("other"), "Labels": {LABEL: "other"}})
    for name in names:
        docker.ask("POST", "/volumes/create", json_body={"Name": name, "Labels": docker.labels})
    for filters in ({"label": [f"{LABEL}={docker.label}"]}, {"name": [docker.name("volume")]}, {"name": names}):
        rows = docker.ask("GET", "/volumes", filters=json.dumps(filters))
        assert rows.status == 200
        assert sorted(row["Name"] for row in rows.json["Volumes"]) == names
    none = docker.ask("GET", "/volumes", filters=json.dumps({"label": [f"{LABEL}=none"]})).json["Volumes"]
    assert not none
    docker.ask("DELETE", f"/volumes/{docker.name('other')}")
    assert sorted(docker.client.volumes.labelled(f"{LABEL}={docker.label}")) == names


def test_a_volume_in_use_stays(docker: Docker) -> None:
    name = docker.name("volume")
    mount = {"Type": "volume", "Source": name, "Target": "/kept", "ReadOnly": False}
    made = docker.create(
        "one", "exit 0", HostConfig={"Mounts": [{**mount, "VolumeOptions": {"Labels": docker.labels}}]}
    )
    assert docker.ask("GET", f"/volumes/{name}").json["Labels"] == docker.labels, "Docker made it with the labels"
    reason = refused(docker.ask("DELETE", f"/volumes/{name}"), 409)
    assert reason == f"remove {name}: volume is in use - [{made}]"
    docker.ask("DELETE", f"/containers/{made}", v=1)
    assert docker.ask("DELETE", f"/volumes/{name}").status == 204
    assert NOWHERE in refused(docker.ask("DELETE", f"/volumes/{NOWHERE}"), 404)
    assert NOWHERE in refused(docker.ask("GET", f"/volumes/{NOWHERE}"), 404)


# fault: kernel/node/secret_files.py: b"FROM scratch\n" → b"FROM vcluster-none\n"
@pytest.mark.promise("P33")
def test_a_volume_is_read_where_the_host_has_no_image(docker: Docker) -> None:
    """`docker system prune --all` leaves the API key in its volume, and nothing to read it through."""
    mount = {"Type": "volume", "Source": docker.name("volume"), "Target": "/kept", "ReadOnly": False}
    mount |= {"VolumeOptions": {"Labels": docker.labels}}
    with some_image(docker.client, "lab", []) as image:
        for name in ("one", "two"):
            door = docker.client.create(
                docker.name(name),
                {"Image": image, "Entrypoint": ["true"], "Labels": docker.labels, "HostConfig": {"Mounts": [mount]}},
            )
            if name == "one":
                docker.client.put_files(door, "/kept", {"file": (b"content", 0o600)})
            assert docker.client.read_file(door, "/kept/file") == b"content"
            docker.client.remove(door)
    assert docker.client.image_info(EMPTY_IMAGE) is None


def test_the_size_and_the_users_of_volumes(docker: Docker) -> None:
    used, blank = docker.name("used"), docker.name("blank")
    docker.ask("POST", "/volumes/create", json_body={"Name": used, "Labels": docker.labels})
    docker.ask("POST", "/volumes/create", json_body={"Name": blank})
    mount = {"Type": "volume", "Source": used, "Target": "/kept", "ReadOnly": False, "VolumeOptions": {"Labels": {}}}
    made = docker.create("one", "exit 0", HostConfig={"Mounts": [mount]})
    docker.client.put_files(made, "/kept", {"file": (b"content", 0o600)})
    rows = {row["Name"]: row for row in docker.ask("GET", "/system/df", type="volume").json["Volumes"]}
    assert rows[used]["UsageData"] == {"Size": 7, "RefCount": 1}
    assert rows[blank]["UsageData"] == {"Size": 0, "RefCount": 0}
    assert not rows[blank]["Labels"]
    assert docker.client.volumes.remove_unlabelled(used, used.__eq__) == 0
    assert docker.client.volumes.remove_unlabelled(blank, blank.__eq__) == 1
    assert docker.ask("GET", f"/volumes/{blank}").status == 404


def test_a_path_that_docker_does_not_know(docker: Docker) -> None:
    assert refused(docker.ask("GET", "/no/such/path"), 404) == "page not found"


def test_an_archive_of_a_folder_begins_with_the_folder(docker: Docker) -> None:
    made = docker.create("one", "exit 0")
    docker.client.put_files(made, "/", {"opt/folder/file": (b"content", 0o600)})
    there = docker.ask("GET", f"/containers/{made}/archive", path="/opt/folder")
    with tarfile.open(fileobj=io.BytesIO(there.body)) as tar:
        assert [(entry.name.rstrip("/"), entry.isdir()) for entry in tar][:2] == [
            ("folder", True),
            ("folder/file", False),
        ]
    assert docker.client.read_file(made, "/opt/folder") is None
