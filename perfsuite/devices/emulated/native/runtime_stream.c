/* Streams and events. An event remembers when the work before it is done on its stream's clock. */
#include "runtime.h"
#include <stdlib.h>

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *made, unsigned flags, int priority)
{
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    if (!stream)
        return emu_fail(cudaErrorMemoryAllocation);
    stream->device = emu_current_device();
    stream->flags = flags;
    stream->priority = priority;
    emu_add_stream(stream);
    *made = stream;
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *made) { return cudaStreamCreateWithPriority(made, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *made, unsigned flags) { return cudaStreamCreateWithPriority(made, flags, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    emu_remove_stream(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { *priority = emu_stream(stream)->priority; return cudaSuccess; }
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) { *flags = emu_stream(stream)->flags; return cudaSuccess; }
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) { *id = emu_stream(stream)->id; return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return emu_now() >= emu_stream(stream)->busy ? cudaSuccess : cudaErrorNotReady; }

cudaError_t cudaStreamSynchronize(cudaStream_t on)
{
    struct CUstream_st *stream = emu_stream(on);
    if (emu_is_capturing(stream)) {
        emu_break_capture(stream);
        return emu_fail(cudaErrorStreamCaptureUnsupported);
    }
    struct emu_call call = emu_enter(EMU_CB_STREAM_SYNCHRONIZE);
    emu_wait_stream(stream);
    emu_leave(call);
    if (!stream->is_waited_for) /* torch waits once more behind a copy that had to wait: one wait, not two */
        emu_note(EMU_SYNC, "cudaStreamSynchronize", 0);
    stream->is_waited_for = false;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t on, cudaEvent_t event, unsigned flags)
{
    struct CUstream_st *stream = emu_stream(on);
    struct emu_call call = emu_enter(EMU_CB_STREAM_WAIT_EVENT);
    (void)flags;
    if (event->capture) {
        emu_capture_wait(stream, event);
    } else {
        emu_lock();
        if (event->is_recorded && event->when > stream->busy)
            stream->busy = event->when;
        emu_unlock();
    }
    emu_leave(call);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *made, unsigned flags)
{
    struct CUevent_st *event = calloc(1, sizeof *event);
    if (!event)
        return emu_fail(cudaErrorMemoryAllocation);
    event->flags = flags;
    event->device = emu_current_device();
    *made = event;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *made) { return cudaEventCreateWithFlags(made, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t on, unsigned flags)
{
    struct CUstream_st *stream = emu_stream(on);
    struct emu_call call = emu_enter(EMU_CB_EVENT_RECORD);
    (void)flags;
    if (emu_is_capturing(stream)) {
        emu_capture_record(stream, event);
    } else {
        emu_lock();
        uint64_t now = emu_now();
        event->capture = NULL;
        event->when = stream->busy > now ? stream->busy : now;
        event->is_recorded = true;
        emu_unlock();
    }
    emu_leave(call);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (event->capture)
        return emu_fail(cudaErrorStreamCaptureUnsupported);
    return !event->is_recorded || emu_now() >= event->when ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (event->capture)
        return emu_fail(cudaErrorStreamCaptureUnsupported);
    struct emu_call call = emu_enter(EMU_CB_EVENT_SYNCHRONIZE);
    if (event->is_recorded)
        emu_wait_until(event->when);
    emu_leave(call);
    emu_note(EMU_SYNC, "cudaEventSynchronize", 0);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    if (!start->is_recorded || !end->is_recorded || (start->flags | end->flags) & cudaEventDisableTiming)
        return emu_fail(cudaErrorInvalidResourceHandle);
    uint64_t now = emu_now();
    if (now < start->when || now < end->when)
        return emu_fail(cudaErrorNotReady);
    *milliseconds = (float)((double)(int64_t)(end->when - start->when) / 1e6);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime_v2(float *milliseconds, cudaEvent_t start, cudaEvent_t end) { return cudaEventElapsedTime(milliseconds, start, end); }

/* Functions of the host that a stream calls: at once, in the order they were given. What they do (drop a reference, set a
 * flag) does not depend on values a kernel would have computed. In a graph they are not called again. */
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    if (!emu_is_capturing(emu_stream(stream)))
        function(argument);
    return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *argument, unsigned flags)
{
    (void)flags;
    function(stream, cudaSuccess, argument);
    return cudaSuccess;
}
