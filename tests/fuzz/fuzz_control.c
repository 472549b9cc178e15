/* Frames of the control plane.  The input is several frames, each after its length in two bytes, little-endian, so that a map
 * can be put together out of its parts; the whole input is tried as one frame too. */
#include "proto/control.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LAYERS = 3, WORKERS = 3 };

static void one_frame(pot_map_receiver *receiver, const uint8_t *frame, size_t size) {
    pot_err err;
    pot_control control;
    pot_map *map = NULL;
    if (pot_control_parse(&control, frame, size, &err) || control.type != POT_CONTROL_MAP) return;
    if (receiver && !pot_map_receiver_add(receiver, &map, frame, size, &err)) pot_map_free(map);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const pot_layer_shape layers[LAYERS] = {{0, 0, 8}, {4, 2, 2}, {4, 2, 2}};
    pot_map_receiver *receiver = pot_map_receiver_create(layers, LAYERS, WORKERS);
    one_frame(receiver, data, size);
    while (size >= 2) {
        size_t frame = (size_t)(data[0] | data[1] << 8);
        data += 2;
        size -= 2;
        if (frame > size) frame = size;
        one_frame(receiver, data, frame);
        data += frame;
        size -= frame;
    }
    pot_map_receiver_free(receiver);
    return 0;
}
