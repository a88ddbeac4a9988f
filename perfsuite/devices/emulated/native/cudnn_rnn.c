/* cuDNN's recurrent layers: where the weights of a layer lie in their common memory, and one kernel a call. NVIDIA's own
 * launches many for a recurrence, and how much memory it keeps for the backward pass is its secret: both are estimates. */
#include "cudnn_shared.h"
#include <stdlib.h>

struct rnn { cudnnRNNMode_t mode; cudnnRNNBiasMode_t bias; cudnnDirectionMode_t direction; cudnnDataType_t type; int input, hidden, projected, layers; };
struct data { int steps, batch, width; };

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *made) { *made = calloc(1, sizeof(struct rnn)); return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t given) { free(given); return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *made) { *made = calloc(1, sizeof(struct data)); return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t given) { free(given); return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t given, cudnnRNNAlgo_t algorithm, cudnnRNNMode_t mode, cudnnRNNBiasMode_t bias,
                                       cudnnDirectionMode_t direction, cudnnRNNInputMode_t input_mode, cudnnDataType_t type, cudnnDataType_t precision,
                                       cudnnMathType_t math, int32_t input, int32_t hidden, int32_t projected, int32_t layers,
                                       cudnnDropoutDescriptor_t dropout, uint32_t flags)
{
    (void)algorithm, (void)input_mode, (void)precision, (void)math, (void)dropout, (void)flags;
    *(struct rnn *)given = (struct rnn){mode, bias, direction, type, input, hidden, projected, layers};
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t given, cudnnDataType_t type, cudnnRNNDataLayout_t layout, int steps, int batch, int width,
                                        const int lengths[], void *fill)
{
    (void)type, (void)layout, (void)lengths, (void)fill;
    *(struct data *)given = (struct data){steps, batch, width};
    return CUDNN_STATUS_SUCCESS;
}

/* ---- where weights lie: all matrices layer by layer, then all biases ---- */
static size_t width_of(cudnnDataType_t type) { return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2; }
static size_t gates(const struct rnn *rnn) { return rnn->mode == CUDNN_LSTM ? 4 : rnn->mode == CUDNN_GRU ? 3 : 1; }
static int directions(const struct rnn *rnn) { return rnn->direction == CUDNN_BIDIRECTIONAL ? 2 : 1; }
static size_t inputs(const struct rnn *rnn, int layer) { return (size_t)(layer / directions(rnn) == 0 ? rnn->input : rnn->projected * directions(rnn)); }
static bool is_projected(const struct rnn *rnn) { return rnn->projected != rnn->hidden; }
static size_t biases(const struct rnn *rnn) { return rnn->bias == CUDNN_RNN_NO_BIAS ? 0 : 2 * gates(rnn) * (size_t)rnn->hidden; }
static size_t matrices(const struct rnn *rnn, int layers)
{
    size_t total = 0, hidden = (size_t)rnn->hidden, projected = (size_t)rnn->projected;
    for (int layer = 0; layer < layers; layer++)
        total += gates(rnn) * hidden * (inputs(rnn, layer) + projected) + (is_projected(rnn) ? projected * hidden : 0);
    return total;
}
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t h, cudnnRNNDescriptor_t given, size_t *size)
{
    const struct rnn *rnn = (const struct rnn *)given;
    int layers = rnn->layers * directions(rnn);
    (void)h;
    *size = width_of(rnn->type) * (matrices(rnn, layers) + (size_t)layers * biases(rnn));
    return CUDNN_STATUS_SUCCESS;
}

extern cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t, cudnnDataType_t, int, const int[], const int[]);
static void describe(cudnnTensorDescriptor_t into, cudnnDataType_t type, size_t rows, size_t columns)
{
    int sizes[3] = {1, (int)rows, (int)columns}, strides[3] = {(int)(rows * columns), (int)columns, 1};
    if (into)
        cudnnSetTensorNdDescriptor(into, type, 3, sizes, strides);
}
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t h, cudnnRNNDescriptor_t given, int32_t layer, size_t size, const void *weights, int32_t part,
                                      cudnnTensorDescriptor_t matrix_desc, void **matrix, cudnnTensorDescriptor_t bias_desc, void **bias)
{
    const struct rnn *rnn = (const struct rnn *)given;
    size_t count = gates(rnn), hidden = (size_t)rnn->hidden, projected = (size_t)rnn->projected, in = inputs(rnn, layer), at = matrices(rnn, layer);
    size_t width = width_of(rnn->type), number = (size_t)part;
    void *unwanted; /* torch wants one of the two and passes NULL for the other */
    (void)h, (void)size;
    matrix = matrix ? matrix : &unwanted;
    bias = bias ? bias : &unwanted;
    *matrix = *bias = NULL;
    if (number < count) {
        *matrix = (char *)weights + width * (at + number * hidden * in);
        describe(matrix_desc, rnn->type, hidden, in);
    } else if (number < 2 * count) {
        *matrix = (char *)weights + width * (at + count * hidden * in + (number - count) * hidden * projected);
        describe(matrix_desc, rnn->type, hidden, projected);
    } else if (is_projected(rnn)) {
        *matrix = (char *)weights + width * (at + count * hidden * (in + projected));
        describe(matrix_desc, rnn->type, projected, hidden);
        return CUDNN_STATUS_SUCCESS;
    }
    if (biases(rnn) && number < 2 * count) {
        int layers = rnn->layers * directions(rnn);
        *bias = (char *)weights + width * (matrices(rnn, layers) + (size_t)layer * biases(rnn) + number * hidden);
        describe(bias_desc, rnn->type, hidden, 1);
    }
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t h, cudnnRNNDescriptor_t given, cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t input,
                                        size_t *workspace, size_t *reserve)
{
    const struct rnn *rnn = (const struct rnn *)given;
    const struct data *x = (const struct data *)input;
    size_t states = (size_t)x->steps * (size_t)x->batch * (size_t)rnn->hidden * (size_t)directions(rnn) * width_of(rnn->type);
    (void)h;
    if (workspace)
        *workspace = states * gates(rnn);
    if (reserve)
        *reserve = mode == CUDNN_FWD_MODE_TRAINING ? states * (size_t)rnn->layers * (gates(rnn) + 2) : 0;
    return CUDNN_STATUS_SUCCESS;
}

static void count(cudnnHandle_t h, const char *name, cudnnRNNDescriptor_t given, cudnnRNNDataDescriptor_t input)
{
    const struct rnn *rnn = (const struct rnn *)given;
    const struct data *x = (const struct data *)input;
    emu_cudnn(h, name, (uint32_t[4]){(uint32_t)x->steps, (uint32_t)x->batch, (uint32_t)rnn->hidden, (uint32_t)(rnn->layers * directions(rnn))});
}
cudnnStatus_t cudnnRNNForward(cudnnHandle_t h, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode, const int32_t lengths[], cudnnRNNDataDescriptor_t x_desc,
                              const void *x, cudnnRNNDataDescriptor_t y_desc, void *y, cudnnTensorDescriptor_t h_desc, const void *hx, void *hy,
                              cudnnTensorDescriptor_t c_desc, const void *cx, void *cy, size_t weight_size, const void *weights, size_t work_size,
                              void *work, size_t reserve_size, void *reserve)
{
    (void)mode, (void)lengths, (void)x, (void)y_desc, (void)y, (void)h_desc, (void)hx, (void)hy, (void)c_desc, (void)cx, (void)cy, (void)weight_size;
    (void)weights, (void)work_size, (void)work, (void)reserve_size, (void)reserve;
    count(h, "cudnnRNNForward", rnn, x_desc);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t h, cudnnRNNDescriptor_t rnn, const int32_t lengths[], cudnnRNNDataDescriptor_t y_desc, const void *y,
                                      const void *dy, cudnnRNNDataDescriptor_t x_desc, void *dx, cudnnTensorDescriptor_t h_desc, const void *hx,
                                      const void *dhy, void *dhx, cudnnTensorDescriptor_t c_desc, const void *cx, const void *dcy, void *dcx,
                                      size_t weight_size, const void *weights, size_t work_size, void *work, size_t reserve_size, void *reserve)
{
    (void)lengths, (void)y_desc, (void)y, (void)dy, (void)dx, (void)h_desc, (void)hx, (void)dhy, (void)dhx, (void)c_desc, (void)cx, (void)dcy, (void)dcx;
    (void)weight_size, (void)weights, (void)work_size, (void)work, (void)reserve_size, (void)reserve;
    count(h, "cudnnRNNBackwardData", rnn, x_desc);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t h, cudnnRNNDescriptor_t rnn, cudnnWgradMode_t mode, const int32_t lengths[],
                                         cudnnRNNDataDescriptor_t x_desc, const void *x, cudnnTensorDescriptor_t h_desc, const void *hx,
                                         cudnnRNNDataDescriptor_t y_desc, const void *y, size_t weight_size, void *weights, size_t work_size, void *work,
                                         size_t reserve_size, void *reserve)
{
    (void)mode, (void)lengths, (void)x, (void)h_desc, (void)hx, (void)y_desc, (void)y, (void)weight_size, (void)weights, (void)work_size, (void)work;
    (void)reserve_size, (void)reserve;
    count(h, "cudnnRNNBackwardWeights", rnn, x_desc);
    return CUDNN_STATUS_SUCCESS;
}
