// Images that the program draws itself, so that training works without any file: ten classes of
// shapes, of varied colour, size, rotation and place, before a background of one colour or from one
// to another, with specks and noise. Integers alone decide: every machine draws the same.
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

/// `count` images, as many of each class as of any other; `part` ("train", "validation") says which
/// ones. The more threads, the sooner.
std::shared_ptr<const ImageSet> draw_images(std::string_view part, int64_t count);

}  // namespace tessera::data
