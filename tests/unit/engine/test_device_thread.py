"""The one thread in which torch runs: 05 THR."""

import threading
import traceback
import weakref
from concurrent.futures import Future
from functools import partial

import pytest
import torch

from forerun.base.errors import ForerunError
from forerun.engine.thread import DeviceThread


@pytest.fixture
def thread():
    device = DeviceThread(threads=3)
    yield device
    device.close()


def test_everything_runs_in_one_thread_in_order_of_arrival(thread):
    """THR-1."""
    gate, ran = threading.Event(), []
    thread.submit(gate.wait)
    futures = [thread.submit(lambda place=place: ran.append(place)) for place in range(5)]
    gate.set()
    idents = {thread.submit(threading.get_ident).result() for _ in range(3)}
    assert ran == [0, 1, 2, 3, 4]
    assert all(future.done() for future in futures)
    assert len(idents) == 1
    assert threading.get_ident() not in idents


def test_inference_mode_holds_in_the_thread_and_nowhere_else(thread):
    """THR-1: entered once, in the thread's main."""
    assert thread.submit(torch.is_inference_mode_enabled).result()
    assert not torch.is_inference_mode_enabled()


def test_cpu_threads_are_those_asked_for(thread):
    assert thread.submit(torch.get_num_threads).result() == 3


def _breaks():
    raise ZeroDivisionError("in the worker")


def test_an_error_comes_back_with_the_trace_of_the_worker(thread):
    """THR-3: the trace names the line that failed, not the line that waited."""
    with pytest.raises(ZeroDivisionError, match="in the worker") as caught:
        thread.submit(_breaks).result()
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "_breaks"
    assert thread.submit(lambda: 1).result() == 1  # and the thread lives on


def test_a_lost_device_is_reported():
    """THR-4: the owner ends the process; an ordinary error is not a lost device."""
    lost = Future()
    device = DeviceThread(on_lost=lost.set_result)

    def assert_on_the_device():
        raise torch.AcceleratorError("device-side assert")

    device.submit(_breaks)
    device.submit(assert_on_the_device)
    assert "device-side assert" in str(lost.result(5))
    device.close()


def test_work_that_was_cancelled_while_queued_is_skipped(thread):
    gate, ran = threading.Event(), []
    thread.submit(gate.wait)
    queued = thread.submit(lambda: ran.append(1))
    assert queued.cancel()
    gate.set()
    thread.submit(lambda: None).result()
    assert ran == []


def test_close_finishes_what_was_submitted_and_refuses_more():
    device = DeviceThread()
    future = device.submit(lambda: 1)
    device.close()
    assert future.done()
    assert future.result() == 1
    with pytest.raises(ForerunError, match="closed"):
        device.submit(lambda: 2)
    device.close()


def test_the_thread_keeps_nothing_of_a_finished_request(thread):
    """03 MEM-1: what a request held is freed when it ends, not when the next one arrives."""

    class Held:
        pass

    held = Held()
    freed = threading.Event()
    weakref.finalize(held, freed.set)
    thread.submit(partial(id, held)).result()
    del held
    assert freed.wait(5)
