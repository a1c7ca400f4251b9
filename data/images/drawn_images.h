// Images that the program draws itself, so that training works without any file. There are ten
// classes of shapes. Colour, size, rotation and position vary. The background has one colour or a
// gradient between two colours, with specks and noise. All arithmetic is in integers, so every
// machine draws equal images.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "data/images/image_set.h"

namespace tessera::data {

inline constexpr ImageShape drawn_shape{32, 32, 3};
inline constexpr std::array<std::string_view, 10> drawn_classes = {
    "circle", "square", "triangle", "cross", "ring", "star", "half disc", "crescent", "bar", "tee"};

/// Draws `count` images, with the classes in turn, on all of the process's threads. Different parts
/// of the data set ("train", "validation") have different images. Throws InputError if `count` is
/// below 1.
std::shared_ptr<const ImageSet> draw_images(std::string_view part, int64_t count);

}  // namespace tessera::data
