// Labels images with a model that train_resnet saved: predict model.safetensors cat.jpg dog.png
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "apps/cli/command_line.h"
#include "apps/cli/paths.h"
#include "apps/predict_options.h"
#include "apps/predict_transform.h"
#include "core/autograd.h"
#include "core/context.h"
#include "core/text/control_character.h"
#include "core/text/number_text.h"
#include "data/images/augment.h"
#include "data/images/formats/image_file.h"
#include "dist/device_choice.h"
#include "models/image/image_classifier.h"
#include "models/image/image_model.h"
#include "nn/weights_file.h"

namespace tessera::apps {
namespace {

// Converts an RGB image to grey, (H, W, 1), with the weights of ITU-R BT.601.
data::ImageView grey(const data::ImageView& image, std::vector<uint8_t>& pixels) {
  const auto count = static_cast<size_t>(image.shape.height * image.shape.width);
  pixels.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const uint8_t* const rgb = image.pixels + 3 * i;
    pixels[i] = static_cast<uint8_t>((299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2] + 500) / 1000);
  }
  return {{image.shape.height, image.shape.width, 1}, pixels.data()};
}

// Reads an image as the model's input, (1, side, side, channels). Converts it to grey for a model
// of one channel.
Tensor read_input(const std::string& path, const models::ImageModel& model) {
  const auto [side, channels, classes] = model.sizes;
  data::ImageMemory memory;
  std::vector<uint8_t> grey_pixels;
  data::ImageView image = data::read_image_file(path, memory);
  if (channels == 1) image = grey(image, grey_pixels);
  if (image.shape.channels != channels) {
    fail_input("{}: the image has 3 channels, expected {} as in the images of the model", path,
               channels);
  }
  const data::ImageTransform transform(predict_transform(model, image.shape));
  const Tensor input = Tensor::empty({1, side, side, channels}, DType::f32, Device{});
  transform.evaluate(image, memory, input.raw());
  return input.to(default_device());
}

void print_guesses(const std::string& path, std::span<const float> logits,
                   const models::ImageModel& model, int64_t top) {
  for (const float logit : logits) {
    if (!std::isfinite(logit)) {
      fail("{}: the model gives a class the score {}, expected a finite number", path,
           without_nan_sign(logit));
    }
  }
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  order.resize(std::min(order.size(), static_cast<size_t>(top)));
  fmt::print("{}\n", with_escaped_controls(path));
  for (const size_t guess : order) {
    fmt::print("{:8.2f} %  {}\n",
               100 * std::exp(static_cast<double>(logits[guess] - largest)) / sum,
               with_escaped_controls(model.class_names[guess]));
  }
}

// Labels each image. Reports an image that is missing or invalid, or does not fit the model, and
// goes on with the next image. Returns the exit code: 2 if there was such an image, else 0. Throws
// Error after any other failure, such as a failing disk or a score that is not finite.
int predict(const PredictOptions& options) {
  check_not_a_checkpoint(options.model);
  dist::choose_device(options.device);
  set_thread_count(dist::threads_per_rank(options.threads, 1));
  const models::ImageModel description = models::read_image_model(options.model);
  const auto model = models::image_classifier(description.name, description.sizes);
  nn::load_weights(options.model, *model);
  model->eval();
  const NoGrad no_grad;
  int result = 0;
  for (const std::string& path : options.images) {
    try {
      const Tensor logits = (*model)(read_input(path, description)).to_host();
      print_guesses(path, logits.values<float>(), description, options.top);
    } catch (const InputError& error) {
      print_error(error);
      result = 2;
    }
  }
  return result;
}

}  // namespace
}  // namespace tessera::apps

int main(int argc, char** argv) {
  using namespace tessera;
  return apps::run_tool([&] {
    const auto [options, help] = apps::parse_predict_command_line(argc, argv);
    if (help.empty()) return apps::predict(options);
    fmt::print("{}", help);
    return 0;
  });
}
