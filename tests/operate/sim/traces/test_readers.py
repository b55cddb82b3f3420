"""Traces of every format become jobs from time 0, and whatever is wrong in a file is named by its line."""

import gzip
from pathlib import Path

import pytest

from phalanx.core.errors import NotFound
from phalanx.core.units import utc_ms
from phalanx.operate.sim.traces import itp, philly, plain, swf
from phalanx.operate.sim.traces.errors import TraceError
from phalanx.operate.sim.traces.named import read_file, read_trace
from phalanx.operate.sim.traces.trace import Trace, TraceJob

PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.5,8,23612.0,6214e9
"""
ITP = "job_id,submission_time,duration,num_gpu\na,120,60,64\nb,100,30,1\n"
SWF = """; Computer: a made-up machine
; MaxProcs: 128
;
  1     0   10   300   4  -1 -1   4   600 -1 1  7  2 -1 1 -1 -1 -1
  2    60   -1    -1   8  -1 -1   8   600 -1 5  7  2 -1 1 -1 -1 -1
  3    90    0   120  -1  -1 -1  16    -1 -1 1  9 -1 -1 1 -1 -1 -1
"""


def test_philly_times_are_sorted_and_begin_at_zero(tmp_path: Path) -> None:
    trace = philly.read(written(tmp_path / "jobs.csv", PHILLY))
    assert [(job.name, job.submit_ms, job.duration_ms, job.devices, job.tenant) for job in trace.jobs] == [
        ("philly-3", 0, 2_951_500, 8, "6214e9"),
        ("philly-2", 2_932_000, 66_000, 1, "11cb48"),
    ]
    assert trace.start_ms == utc_ms("2017-10-09T06:13:03Z")


def test_itp_in_a_gzip_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster09.csv.gz"
    file.write_bytes(gzip.compress(ITP.encode()))
    trace = itp.read(file)
    assert trace.name == "itp/cluster09"
    assert [(job.name, job.submit_ms, job.duration_ms, job.devices) for job in trace.jobs] == [
        ("b", 0, 30_000, 1),
        ("a", 20_000, 60_000, 64),
    ]


def test_a_byte_order_mark_before_the_head_is_no_part_of_it(tmp_path: Path) -> None:
    """As spreadsheets write."""
    marked = read_file(written(tmp_path / "marked.csv", f"\ufeff{PHILLY}"))
    assert marked.jobs == read_file(written(tmp_path / "jobs.csv", PHILLY)).jobs


def test_swf_jobs_that_never_ran_are_counted_and_unknown_numbers_are_left_out(tmp_path: Path) -> None:
    trace = swf.read(written(tmp_path / "machine.swf", SWF))
    assert trace.skipped == 1
    assert (trace.machine_devices, trace.start_ms) == (128, None)
    dated = swf.read(written(tmp_path / "dated.swf", "; UnixStartTime: 835466073\n" + SWF.replace("  1     0 ", "  1     5 ")))
    assert dated.start_ms == 835_466_078_000
    assert swf.read(written(tmp_path / "undated.swf", "; UnixStartTime: 0\n" + SWF)).start_ms is None
    assert trace.source == "a made-up machine"
    first, second = trace.jobs
    assert (first.name, first.devices, first.duration_ms, first.limit_ms, first.tenant) == ("swf-1", 4, 300_000, 600_000, "group-2")
    assert (second.name, second.devices, second.submit_ms, second.limit_ms, second.tenant) == ("swf-3", 16, 90_000, None, "user-9")


def test_plain_rows_have_everything_that_is_told(tmp_path: Path) -> None:
    head = "submit_s,duration_s,devices,tenant,limit_s,priority,types,milli,spot"
    text = f"{head}\n0,10,1,a,20,75,H100|A100-80,250,prefer\n5,1.5,8,,,,,,\n"
    first, second = plain.read(written(tmp_path / "mine.csv", text)).jobs
    assert (first.tenant, first.limit_ms, first.priority, first.types, first.milli) == ("a", 20_000, 75, ("H100", "A100-80"), 250)
    assert (second.tenant, second.limit_ms, second.priority, second.types, second.milli) == ("default", None, 50, (), 1000)
    assert (second.submit_ms, second.duration_ms) == (5_000, 1_500)
    assert (first.spot, second.spot) == ("prefer", "never")


@pytest.mark.parametrize(
    ("file", "text", "field", "fix"),
    [
        ("a.csv", PHILLY + "2017-10-09,ten,1,1,x\n", "a.csv:4", "duration: write a number"),
        ("a.csv", PHILLY + "2017-10-09,-5,1,1,x\n", "a.csv:4", "duration: write a number above 0"),
        ("a.csv", PHILLY + "2017-10-09,0,1,1,x\n", "a.csv:4", "duration: write a number above 0"),
        ("a.csv", PHILLY + "2017-10-09,nan,1,1,x\n", "a.csv:4", "duration: write a number"),
        ("a.csv", PHILLY + "2017-10-09,inf,1,1,x\n", "a.csv:4", "duration: write a number"),
        ("a.csv", PHILLY + "2017-10-09,1e300,1,1,x\n", "a.csv:4", "duration: is absurdly large; write 1000000000000 or less"),
        ("a.csv", PHILLY + "2017-10-09,5,0,1,x\n", "a.csv:4", "num_gpus: write 1 or more"),
        ("a.csv", PHILLY + "yesterday,5,1,1,x\n", "a.csv:4", "timestamp: write a time such as 2017-10-09 07:01:55"),
        ("a.csv", PHILLY + "2017-10-09,5,1\n", "a.csv:4", "has 3 columns; the head has 5"),
        ("a.csv", PHILLY.splitlines()[0] + "\n", "a.csv", "has no job that ran; name a trace with at least one"),
        ("a.csv", ITP + "c,-1,5,1\n", "a.csv:4", "submission_time: write 0 or more"),
        ("a.swf", SWF + "4 1 2 3\n", "a.swf:7", "has 4 numbers; a job has 18, -1 for unknown"),
        ("a.swf", SWF + SWF.splitlines()[3].replace("300", "x"), "a.swf:7", "run time: write a number"),
        ("a.swf", SWF + SWF.splitlines()[3].replace("300", "-7"), "a.swf:7", "run time: write -1 or more"),
        ("a.swf", "; nothing\n", "a.swf", "has no job that ran; name a trace with at least one"),
        (
            "a.csv",
            "submit_s,duration_s,devices,milli\n0,1,2,500\n",
            "a.csv:2",
            "milli: write 1 to 1000, and less than 1000 only for one",
        ),
        ("a.csv", "submit_s,duration_s,devices,priority\n0,1,2,101\n", "a.csv:2", "priority: write 0 to 100"),
        ("a.csv", "submit_s,duration_s,devices\n0,1,1\n0,1,1.5\n", "a.csv:3", "devices: write a whole number"),
        ("a.csv", "submit_s,duration_s,devices,milli\n0,1,1,250.5\n", "a.csv:2", "milli: write a whole number"),
        ("a.csv", "submit_s,duration_s,devices,priority\n0,1,1,50.5\n", "a.csv:2", "priority: write a whole number"),
        ("a.csv", PHILLY + "2017-10-09,5,1.5,1,x\n", "a.csv:4", "num_gpus: write a whole number"),
        ("a.csv", ITP + "c,1,5,2.5\n", "a.csv:4", "num_gpu: write a whole number"),
        (
            "a.swf",
            SWF + SWF.splitlines()[3].replace("  4   600", "  4.5 600"),
            "a.swf:7",
            "requested processors: write a whole number",
        ),
        ("a.csv", "submit_s,duration_s,devices\n0,1_000,1\n", "a.csv:2", "duration_s: write a number"),
        ("a.csv", "submit_s,duration_s,devices\n0,1,\u0663\n", "a.csv:2", "devices: write a number"),
        ("a.csv", "submit_s,duration_s,devices\n0,1e999,1\n", "a.csv:2", "duration_s: is absurdly large"),
        ("a.csv", f"submit_s,duration_s,devices\n0,{'9' * 5000},1\n", "a.csv:2", "duration_s: is absurdly large"),
        ("a.csv", ITP + "c,1,5,1_0\n", "a.csv:4", "num_gpu: write a number"),
        ("a.swf", SWF + SWF.splitlines()[3].replace("300", "3_0"), "a.swf:7", "run time: write a number"),
        ("a.csv", "submit_s,duration_s,devices,spot\n0,1,1,yes\n", "a.csv:2", "spot: write never, allow, prefer, or nothing"),
        ("a.csv", "submit_s,duration_s,devices,types\n0,1,1,|\n", "a.csv:2", "types: write types such as H100|A100-80, or nothing"),
        ("a.csv", "submit_s,duration_s,devices,types\n0,1,1,H100|\n", "a.csv:2", "types: write types such as H100|A100-80"),
        ("a.csv", "submit_s,duration_s,devices,limits_s\n0,1,1,9\n", "a.csv:1", "did you mean 'limit_s'?"),
        ("a.csv", "submit_s,duration_s,devices,prioriti\n0,1,1,9\n", "a.csv:1", "did you mean 'priority'?"),
        ("a.csv", "submit_s,duration_s,devices,zzz\n0,1,1,9\n", "a.csv:1", "is no column of such a trace; there are submit_s,"),
        ("a.csv", "submit_s,duration_s,devices,\n0,1,1,9\n", "a.csv:1", "is no column of such a trace; there are submit_s,"),
        ("a.csv", "submit_s,duration_s,devices,devices\n0,1,1,2\n", "a.csv:1", "the head names this column twice; leave one out"),
        ("a.csv", "submit_s,duration_s,devices,milli,milli\n0,1,1,2,3\n", "a.csv:1", "the head names this column twice"),
        ("a.csv", ITP.replace("duration,", "duration,duration,"), "a.csv:1", "the head names this column twice"),
        ("a.csv", "when,what\n1,2\n", "a.csv:1", "names the columns of no known format"),
        ("a.csv", "", "a.csv:1", "names the columns of no known format"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(tmp_path: Path, file: str, text: str, field: str, fix: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_file(written(tmp_path / file, text))
    assert caught.value.field == field
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("head", "fix"),
    [
        (
            "submitt,duration_s,devices",
            "lacks submit_s; did you mean 'submit_s' for 'submitt'? the first line names the columns submit_s,",
        ),
        ("submit_s,duration_s,gpu", "lacks devices; the first line names the columns submit_s, duration_s, devices"),
        (
            "limit_s,submit,duration,device",
            "did you mean 'submit_s' for 'submit', 'duration_s' for 'duration', 'devices' for 'device'?",
        ),
        ("timestamp,duration,gpus,cluster", "did you mean 'num_gpus' for 'gpus'?"),
        ("job_id,submision_time,duration,num_gpu", "did you mean 'submission_time' for 'submision_time'?"),
        ("job_id,gpus,submit_time,iterations,model_name,duration,iteration_time", "did you mean 'num_gpu' for 'gpus'?"),
        ("name,cpu_mili,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time", "did you mean 'cpu_milli' for 'cpu_mili'?"),
        (
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli,created_time,deletion_time",
            "did you mean 'creation_time' for 'created_time'?",
        ),
    ],
)
def test_a_required_column_that_is_mistyped_is_recognised_in_every_format(tmp_path: Path, head: str, fix: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_file(written(tmp_path / "a.csv", f"{head}\n"))
    assert caught.value.field == "a.csv:1"
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("name", "content", "fix"),
    [
        ("a.csv.gz", b"not gzip", "is not a whole gzip file"),
        ("a.csv.gz", gzip.compress((PHILLY + PHILLY.splitlines()[1] + "\n").encode())[:-20], "is not a whole gzip file"),
        ("a.csv", b"\xff\xfe\x00", "is not UTF-8 text"),
    ],
)
def test_files_that_cannot_be_read_say_so(tmp_path: Path, name: str, content: bytes, fix: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError, match=fix):
        read_file(tmp_path / name)


def test_a_head_that_nobody_knows_and_a_folder_are_told_shortly(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read_file(written(tmp_path / "a.csv", ",".join(f"column{number}" for number in range(99))))
    assert len(caught.value.sentence()) < 250
    assert "submit_s,duration_s,devices" in caught.value.fix
    with pytest.raises(TraceError) as caught:
        read_trace(str(tmp_path), None)
    assert (caught.value.field, caught.value.value) == ("trace", str(tmp_path))
    assert caught.value.fix.startswith("is a folder; name a file in it")


def test_traces_are_found_by_name_and_what_there_is_is_said(tmp_path: Path) -> None:
    for folder in ("philly", "itp"):
        (tmp_path / folder).mkdir()
    (tmp_path / "philly" / "jobs.csv.gz").write_bytes(gzip.compress(PHILLY.encode()))
    written(tmp_path / "itp" / "cluster09.csv", ITP)
    assert read_trace("philly", tmp_path).name == "philly"
    assert read_trace("itp/cluster09", tmp_path).name == "itp/cluster09"
    assert read_trace(str(tmp_path / "itp" / "cluster09.csv"), None).name == "itp/cluster09"
    with pytest.raises(NotFound, match=r"there are itp/cluster09, philly$"):
        read_trace("itp/cluster08", tmp_path)
    with pytest.raises(NotFound, match="--trace-dir"):
        read_trace("philly", None)
    with pytest.raises(NotFound, match="no such file"):
        read_trace(str(tmp_path / "absent.csv"), None)


def test_only_names_that_are_read_are_offered(tmp_path: Path) -> None:
    """Nodes of a trace, pods without times and files that are no traces are not; each name that is offered can be written."""
    pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"
    for folder in ("openb", "swf", "other"):
        (tmp_path / folder).mkdir()
    for mix in ("default", "gpushare40"):
        written(tmp_path / "openb" / f"pods_{mix}.csv", f"{pods},creation_time,deletion_time\na,1,1,1,1000,0,9\n")
    written(tmp_path / "openb" / "pods_multigpu20.csv", f"{pods}\na,1,1,1,1000\n")
    written(tmp_path / "openb" / "nodes_gpu.csv", "sn,cpu_milli,memory_mib,gpu,model\nn,1,1,1,P100\n")
    written(tmp_path / "swf" / "machine.swf", SWF)
    written(tmp_path / "other" / "notes.csv", "when,what\n")
    (tmp_path / "other" / "broken.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(NotFound) as caught:
        read_trace("openb/pods_default", tmp_path)
    offered = caught.value.fix.partition("there are ")[2].split(", ")
    assert offered == ["openb/default", "openb/gpushare40", "swf/machine"]
    for name in offered:
        assert read_trace(name, tmp_path).jobs


def test_the_peak_counts_what_overlaps() -> None:
    jobs = [TraceJob("a", 0, 100, 4), TraceJob("b", 50, 100, 8), TraceJob("c", 100, 10, 2)]
    assert Trace.of("t", jobs).peak_devices == 12


def written(file: Path, text: str) -> Path:
    file.write_text(text)
    return file
