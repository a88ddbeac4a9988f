/* Graphs: a capture notes what its streams are given, lane by lane, with the events between them; a launch plays the
 * notes on the clock, so that branches run side by side exactly where the capture let them. */
#include "runtime.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum step_kind { STEP_WORK, STEP_RECORD, STEP_WAIT };
struct step { enum step_kind kind; int lane, slot; struct emu_work work; };
struct CUgraph_st { struct step *steps; size_t count, room, works; int lanes, slots; unsigned id; };
struct CUgraphExec_st { struct CUgraph_st graph; };
struct emu_capture { bool is_active, is_broken; unsigned long long id; struct CUgraph_st *graph; struct CUstream_st *origin; };

static int active;
static unsigned long long next_capture = 1;

static struct emu_capture *capture_of(struct CUstream_st *stream) /* lock held */
{
    if (stream->capture && !stream->capture->is_active)
        stream->capture = NULL;
    return stream->capture;
}

bool emu_any_capture(void) { return __atomic_load_n(&active, __ATOMIC_RELAXED) > 0; }

bool emu_is_capturing(struct CUstream_st *stream)
{
    if (!emu_any_capture())
        return false;
    emu_lock();
    bool found = capture_of(stream) != NULL;
    emu_unlock();
    return found;
}

static void add(struct CUgraph_st *graph, struct step step)
{
    if (graph->count == graph->room) {
        graph->room = graph->room ? 2 * graph->room : 64;
        graph->steps = realloc(graph->steps, graph->room * sizeof *graph->steps);
    }
    graph->steps[graph->count++] = step;
    graph->works += step.kind == STEP_WORK;
}

void emu_capture_work(struct CUstream_st *stream, const struct emu_work *work)
{
    emu_lock();
    struct emu_capture *capture = capture_of(stream);
    if (capture)
        add(capture->graph, (struct step){STEP_WORK, stream->lane, 0, *work});
    emu_unlock();
}

void emu_capture_record(struct CUstream_st *stream, struct CUevent_st *event)
{
    emu_lock();
    struct emu_capture *capture = capture_of(stream);
    if (capture) {
        event->capture = capture;
        event->slot = capture->graph->slots++;
        add(capture->graph, (struct step){.kind = STEP_RECORD, .lane = stream->lane, .slot = event->slot});
    }
    emu_unlock();
}

/* A stream that waits for an event of a capture joins it, with a lane of its own. */
void emu_capture_wait(struct CUstream_st *stream, struct CUevent_st *event)
{
    emu_lock();
    struct emu_capture *capture = event->capture;
    if (capture->is_active) {
        if (capture_of(stream) != capture) {
            stream->capture = capture;
            stream->lane = capture->graph->lanes++;
        }
        add(capture->graph, (struct step){.kind = STEP_WAIT, .lane = stream->lane, .slot = event->slot});
    } else {
        event->capture = NULL;
    }
    emu_unlock();
}

void emu_break_capture(struct CUstream_st *stream)
{
    emu_lock();
    if (capture_of(stream))
        stream->capture->is_broken = true;
    emu_unlock();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t on, enum cudaStreamCaptureMode mode)
{
    struct CUstream_st *stream = emu_stream(on);
    struct emu_capture *capture = calloc(1, sizeof *capture); /* events may point to it for ever: never freed */
    struct CUgraph_st *graph = calloc(1, sizeof *graph);
    (void)mode;
    if (!capture || !graph || stream->is_default || emu_is_capturing(stream))
        return emu_fail(cudaErrorIllegalState);
    emu_lock();
    *capture = (struct emu_capture){true, false, next_capture++, graph, stream};
    graph->id = (unsigned)capture->id;
    graph->lanes = 1;
    stream->capture = capture;
    stream->lane = 0;
    active++;
    emu_unlock();
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t on, cudaGraph_t *made)
{
    struct CUstream_st *stream = emu_stream(on);
    emu_lock();
    struct emu_capture *capture = capture_of(stream);
    if (capture) {
        capture->is_active = false;
        stream->capture = NULL;
        active--;
    }
    emu_unlock();
    if (!capture)
        return emu_fail(cudaErrorIllegalState);
    *made = capture->is_broken ? NULL : capture->graph;
    return capture->is_broken ? emu_fail(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
}

static enum cudaStreamCaptureStatus status_of(struct CUstream_st *stream, unsigned long long *id, cudaGraph_t *graph)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (id)
        *id = 0;
    if (!emu_any_capture())
        return status;
    emu_lock();
    struct emu_capture *capture = capture_of(stream);
    if (capture) {
        status = capture->is_broken ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
        if (id)
            *id = capture->id;
        if (graph)
            *graph = capture->graph;
    }
    emu_unlock();
    return status;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    *status = status_of(emu_stream(stream), NULL, NULL);
    return cudaSuccess;
}
#if EMULATED_CUDA >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *count)
{
    if (edges)
        *edges = NULL;
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **nodes, size_t *count)
{
#endif
    if (nodes)
        *nodes = NULL;
    if (count)
        *count = 0;
    *status = status_of(emu_stream(stream), id, graph);
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    static __thread enum cudaStreamCaptureMode current;
    enum cudaStreamCaptureMode before = current;
    current = *mode;
    *mode = before;
    return cudaSuccess;
}

/* ---- launching ---- */
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    struct CUgraphExec_st *exec = calloc(1, sizeof *exec);
    exec->graph = *graph;
    exec->graph.steps = malloc(graph->count * sizeof *graph->steps + 1);
    memcpy(exec->graph.steps, graph->steps, graph->count * sizeof *graph->steps);
    *made = exec;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) { return cudaGraphInstantiateWithFlags(made, graph, flags); }

static uint64_t play_steps(struct CUstream_st *stream, struct CUgraph_st *graph, uint32_t correlation)
{
    uint64_t begin = emu_begin_many(stream), end = begin;
    uint64_t *lanes = malloc(((size_t)graph->lanes + (size_t)graph->slots + 1) * sizeof *lanes), *slots = lanes + graph->lanes;
    for (int i = 0; i < graph->lanes + graph->slots; i++)
        lanes[i] = begin;
    for (size_t i = 0; i < graph->count; i++) {
        struct step *step = &graph->steps[i];
        uint64_t *lane = &lanes[step->lane];
        if (step->kind == STEP_WORK)
            *lane = emu_play(stream, &step->work, *lane, correlation, graph->id);
        else if (step->kind == STEP_RECORD)
            slots[step->slot] = *lane;
        else if (slots[step->slot] > *lane)
            *lane = slots[step->slot];
        end = *lane > end ? *lane : end;
    }
    free(lanes);
    return end;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t on)
{
    struct CUstream_st *stream = emu_stream(on);
    struct CUgraph_st *graph = &exec->graph;
    struct emu_call call = emu_enter(EMU_CB_GRAPH_LAUNCH);
    for (size_t i = 0; i < graph->count; i++)
        if (graph->steps[i].kind == STEP_WORK && graph->steps[i].work.to)
            emu_do_copy(&graph->steps[i].work);
    emu_take_slot(stream);
    emu_lock();
    emu_end_many(stream, play_steps(stream, graph, call.correlation));
    emu_unlock();
    emu_leave(call);
    emu_note(EMU_GRAPH, "cudaGraphLaunch", graph->works); /* its "bytes" are its nodes */
    for (size_t i = 0; i < graph->count; i++)
        if (graph->steps[i].kind == STEP_WORK)
            emu_notify(graph->steps[i].work.function, graph->steps[i].work.bytes, &graph->steps[i].work.shape, EMU_FLAG_IN_GRAPH);
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) { (void)exec, (void)stream; return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    free(graph->steps);
    free(graph);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    free(exec->graph.steps);
    free(exec);
    return cudaSuccess;
}

/* ---- looking into a graph ---- */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    size_t found = 0;
    if (!nodes) {
        *count = graph->works;
        return cudaSuccess;
    }
    for (size_t i = 0; i < graph->count && found < *count; i++)
        if (graph->steps[i].kind == STEP_WORK)
            nodes[found++] = (cudaGraphNode_t)&graph->steps[i];
    return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type)
{
    enum emu_kind kind = ((struct step *)node)->work.function->kind;
    *type = kind == EMU_KERNEL || kind == EMU_LIBRARY ? cudaGraphNodeTypeKernel : kind == EMU_MEMSET ? cudaGraphNodeTypeMemset : cudaGraphNodeTypeMemcpy;
    return cudaSuccess;
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned flags)
{
    FILE *file = fopen(path, "w");
    (void)flags;
    if (!file)
        return emu_fail(cudaErrorInvalidValue);
    fprintf(file, "digraph captured {\n");
    for (size_t i = 0; i < graph->count; i++)
        if (graph->steps[i].kind == STEP_WORK)
            fprintf(file, "  n%zu [label=\"%s\"]; // lane %d\n", i, graph->steps[i].work.function->name, graph->steps[i].lane);
    fprintf(file, "}\n");
    return fclose(file) ? emu_fail(cudaErrorInvalidValue) : cudaSuccess;
}
