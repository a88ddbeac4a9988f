/* cuDNN's graph API, through which torch runs convolutions and may run attention: descriptors keep their attributes, one
 * engine is offered for every graph, it needs no workspace, and running a plan is one library kernel. */
#include "cudnn_shared.h"
#include <stdlib.h>
#include <string.h>

struct attribute { cudnnBackendAttributeName_t name; cudnnBackendAttributeType_t type; int64_t count; char *data; struct attribute *next; };
struct descriptor {
    cudnnBackendDescriptorType_t kind;
    uint64_t fingerprint;                   /* of all that was set in it and below it: tells problems apart */
    cudnnBackendDescriptorType_t operation; /* the convolution in it or below it */
    struct attribute *attributes;
};

static size_t width_of(cudnnBackendAttributeType_t type)
{
    switch ((int)type) {
    case CUDNN_TYPE_HANDLE: case CUDNN_TYPE_INT64: case CUDNN_TYPE_DOUBLE: case CUDNN_TYPE_VOID_PTR: case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case CUDNN_TYPE_BOOLEAN: case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_FRACTION: return 16;
    default: return 4; /* enumerations, floats and 32-bit numbers */
    }
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind, cudnnBackendDescriptor_t *made)
{
    struct descriptor *one = calloc(1, sizeof *one);
    one->kind = kind;
    one->fingerprint = 0xcbf29ce484222325ull ^ (uint64_t)kind;
    if (kind >= CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR && kind <= CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
        one->operation = kind;
    *made = (cudnnBackendDescriptor_t)one;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t given)
{
    struct descriptor *one = (struct descriptor *)given;
    for (struct attribute *next; one && one->attributes; one->attributes = next) {
        next = one->attributes->next;
        free(one->attributes->data);
        free(one->attributes);
    }
    free(one);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendInitialize(cudnnBackendDescriptor_t given) { (void)given; return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t given) { (void)given; return CUDNN_STATUS_SUCCESS; }

static struct attribute *find(const struct descriptor *one, cudnnBackendAttributeName_t name)
{
    for (struct attribute *at = one->attributes; at; at = at->next)
        if (at->name == name)
            return at;
    return NULL;
}

static void mix(struct descriptor *one, uint64_t value) { one->fingerprint = (one->fingerprint ^ value) * 0x100000001b3ull; }

/* Below descriptors may be gone when the plan runs: what they say is taken when they are handed over. */
static void take_fingerprint(struct descriptor *one, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    mix(one, (uint64_t)name);
    if (type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_VOID_PTR)
        return; /* addresses differ from run to run */
    if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        for (size_t i = 0; i < (size_t)count * width_of(type); i++)
            mix(one, ((const unsigned char *)values)[i]);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        const struct descriptor *below = ((struct descriptor *const *)values)[i];
        if (!below)
            continue;
        mix(one, below->fingerprint);
        if (below->operation)
            one->operation = below->operation;
    }
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t given, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    struct descriptor *one = (struct descriptor *)given;
    struct attribute *at = find(one, name);
    size_t size = (size_t)count * width_of(type);
    if (!at) {
        at = calloc(1, sizeof *at);
        at->next = one->attributes;
        one->attributes = at;
    }
    free(at->data);
    at->name = name, at->type = type, at->count = count, at->data = malloc(size + 1);
    memcpy(at->data, values, size);
    take_fingerprint(one, name, type, count, values);
    return CUDNN_STATUS_SUCCESS;
}

/* Descriptors that a caller has made and wants filled: the engine of a configuration, and heuristics' results. They
 * inherit what the descriptor they are read from says. */
static void hand_down(const struct descriptor *from, int64_t wanted, void *values)
{
    if (!values || wanted < 1 || !*(struct descriptor **)values)
        return;
    struct descriptor *to = *(struct descriptor **)values;
    to->fingerprint = from->fingerprint;
    to->operation = from->operation;
}
cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t given, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t wanted, int64_t *found, void *values)
{
    const struct descriptor *one = (const struct descriptor *)given;
    const struct attribute *at = find(one, name);
    int64_t none, one_number = 1;
    found = found ? found : &none;
    *found = 0;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        *found = name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINECFG_ENGINE || name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG;
        if (*found)
            hand_down(one, wanted, values);
        return CUDNN_STATUS_SUCCESS;
    }
    if (name == CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT) {
        *found = 1;
        if (values && wanted > 0)
            memcpy(values, &one_number, sizeof one_number);
        return CUDNN_STATUS_SUCCESS;
    }
    if (at) {
        *found = at->count;
        if (values)
            memcpy(values, at->data, (size_t)(at->count < wanted ? at->count : wanted) * width_of(type));
        return CUDNN_STATUS_SUCCESS;
    }
    *found = name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE || name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX || name == CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE;
    if (values && wanted > 0)
        memset(values, 0, width_of(type));
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    const struct descriptor *one = (const struct descriptor *)plan;
    const char *name = one->operation == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ? "cudnn convolution forward"
        : one->operation == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR ? "cudnn convolution backward filter"
        : one->operation == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? "cudnn convolution backward data" : "cudnnBackendExecute";
    (void)pack;
    emu_cudnn(handle, name, (uint32_t[4]){(uint32_t)one->fingerprint, (uint32_t)(one->fingerprint >> 32), 1, 1});
    return CUDNN_STATUS_SUCCESS;
}
