#include "core/cpu/onednn_conv.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/context.h"
#include "core/cpu/onednn_library.h"
#include "core/cpu/primitive_cache.h"

namespace tessera::cpu::onednn {
namespace {

/// Everything that a primitive depends on: the key of the cache.
struct Problem {
  Conv2dSizes sizes;
  int64_t pass, dtype, has_bias, threads;

  bool operator==(const Problem&) const = default;
};

/// A primitive and its arguments, whose addresses are set before each run.
struct Call {
  dnnl::primitive primitive;
  std::unordered_map<int, dnnl::memory> arguments;
  int64_t scratchpad_bytes = 0;

  void set(int name, void* data) { TESSERA_ONEDNN(arguments.at(name).set_data_handle(data)); }
  void run(void* scratchpad) {
    if (scratchpad_bytes > 0) set(DNNL_ARG_SCRATCHPAD, scratchpad);
    TESSERA_ONEDNN(primitive.execute(stream(), arguments));
  }
};

/// A tensor of a convolution, in the caller's layout and in the library's.
struct Operand {
  Call reorder;              // between the two layouts; empty if they are equal
  int64_t packed_bytes = 0;  // in the library's layout, in whole cache lines; 0 without a reorder
};

/// A convolution and the reorders of its tensors. The workspace begins with the copies of x, weight
/// and y in the library's layout, if needed. Then comes the scratchpad, which the convolution and
/// the reorders use one after the other.
struct Convolution {
  Call call;
  std::array<Operand, 3> operands;  // x, weight, y

  int64_t packed_bytes() const {
    int64_t bytes = 0;
    for (const Operand& operand : operands) bytes += operand.packed_bytes;
    return bytes;
  }
  int64_t workspace_bytes() const {
    int64_t scratchpad = call.scratchpad_bytes;
    for (const Operand& operand : operands) {
      scratchpad = std::max(scratchpad, operand.reorder.scratchpad_bytes);
    }
    return packed_bytes() + scratchpad;
  }
};

/// The tensors of a convolution in the library's terms.
struct Layouts {
  dnnl::algorithm algorithm = dnnl::algorithm::convolution_direct;
  dnnl::memory::desc x, y, bias;       // with Winograd, the library chooses x's and y's layout
  dnnl::memory::desc weight, dweight;  // in the layout that the library chooses
  dnnl::memory::desc plain_x, plain_weight, plain_y;  // the caller's layout, also for gradients
  dnnl::memory::dims stride, dilation, padding;
  bool strides_few_channels = false;
  bool has_few_channels = false;
  dnnl::primitive_attr attributes;

  bool is_winograd() const { return algorithm == dnnl::algorithm::convolution_winograd; }
};

Layouts layouts_of(const Problem& p, dnnl::algorithm algorithm) {
  using Tag = dnnl::memory::format_tag;
  const Conv2dSizes& s = p.sizes;
  const auto& [stride, padding, dilation, groups] = s.options;
  const auto type = data_type(static_cast<DType>(p.dtype));
  dnnl::memory::dims weight{s.out_channels / groups, s.group_channels(), s.kernel_height,
                            s.kernel_width};
  if (groups > 1) weight.insert(weight.begin(), groups);
  const dnnl::memory::dims x{s.images, s.channels, s.height, s.width};
  const dnnl::memory::dims y{s.images, s.out_channels, s.out_height, s.out_width};
  Layouts l;
  l.algorithm = algorithm;
  l.plain_x = {x, type, Tag::nhwc};
  l.plain_y = {y, type, Tag::nhwc};
  l.x = l.is_winograd() ? dnnl::memory::desc(x, type, Tag::any) : l.plain_x;
  l.y = l.is_winograd() ? dnnl::memory::desc(y, type, Tag::any) : l.plain_y;
  if (p.has_bias) l.bias = {{s.out_channels}, type, Tag::a};
  l.weight = {weight, type, Tag::any};
  l.dweight = {weight, dnnl::memory::data_type::f32, Tag::any};
  l.plain_weight = {weight, type, groups > 1 ? Tag::goihw : Tag::oihw};
  l.stride = {stride.height, stride.width};
  l.dilation = {dilation.height - 1, dilation.width - 1};
  l.padding = {padding.height, padding.width};
  l.has_few_channels = s.group_channels() <= 32;
  constexpr int64_t widest_vector = 16;  // f32 values
  l.strides_few_channels = s.kernel_height * s.kernel_width == 1 && stride != Size2(1) &&
                           s.group_channels() < widest_vector;
  l.attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return l;
}

// Chooses the library's implementation for few input channels. If the library's first choice is a
// batch of small matrix products ("brg..."), returns the library's direct convolution instead, if
// there is one. The direct convolution is faster: ResNet-20's first layer takes 0.55 ms instead of
// 0.83 ms, and ResNet-20's strided 1x1 layers take 0.16 ms instead of 0.23 ms.
template <class Make>
auto direct_or_first(Make&& make) {
  const auto first = make();
  if (!std::string_view(first.impl_info_str()).starts_with("brg")) return first;
  auto other = make();
  while (other.next_impl()) {
    const std::string_view name = other.impl_info_str();
    if (name.starts_with("jit") && name.find("1x1") == name.npos) return other;
  }
  return first;
}

// Returns the first implementation that is not specialised for 1x1 kernels. Throws if there is
// none. oneDNN 2's weight gradient for 1x1 kernels writes beyond its scratchpad if the convolution
// has a stride and a pixel's channels do not fill a vector.
template <class Make>
auto without_1x1(Make&& make) {
  auto chosen = make();
  while (std::string_view(chosen.impl_info_str()).find("1x1") != std::string_view::npos) {
    TESSERA_CHECK(chosen.next_impl(), "conv2d: oneDNN has no weight gradient for a 1x1 kernel with "
                                      "a stride and fewer than 16 channels");
  }
  return chosen;
}

// True if Winograd's algorithm F(4 x 4, 3 x 3) is faster than the direct one (Lavin and Gray, "Fast
// Algorithms for Convolutional Neural Networks", 2015). Winograd's algorithm needs a quarter of the
// multiplications. Its time on 3x3 layers of ResNet-18 and -20, compared with the direct algorithm:
//  - half for the forward and the gradient of x,
//  - two thirds for the gradient of the weight, from 64 channels on.
// Reordering the images costs a fifth of the gain. Winograd's algorithm is slower with few
// channels, and also if the transformed weight is larger than the images.
bool suits_winograd(const Problem& p) {
  const Conv2dSizes& s = p.sizes;
  const auto& [stride, padding, dilation, groups] = s.options;
  constexpr int64_t block = 16;  // channels per block of the library's layout
  const int64_t least = p.pass == static_cast<int64_t>(Conv2dPass::weight_gradient) ? 64 : 32;
  const int64_t most = std::max(s.channels, s.out_channels);
  return p.dtype == static_cast<int64_t>(DType::f32) && s.kernel_height == 3 &&
         s.kernel_width == 3 && stride == Size2(1) && padding == Size2(1) &&
         dilation == Size2(1) && groups == 1 && s.channels % block == 0 &&
         s.out_channels % block == 0 && std::min(s.channels, s.out_channels) >= least &&
         s.images * s.out_height * s.out_width >= 4 * most;
}

// The three describe functions return an empty description if `l` asks for Winograd's algorithm,
// and oneDNN does not have it for the convolution on this machine.
dnnl::convolution_forward::primitive_desc describe_forward(const Layouts& l) {
  using Forward = dnnl::convolution_forward;
  constexpr auto kind = dnnl::prop_kind::forward_training;
#if DNNL_VERSION_MAJOR >= 3
  const auto make = [&] {
    return TESSERA_ONEDNN(Forward::primitive_desc(
        engine(), kind, l.algorithm, l.x, l.weight, l.bias, l.y, l.stride, l.dilation, l.padding,
        l.padding, l.attributes, l.is_winograd()));
  };
#else
  // `operation` must outlive the search for an implementation: oneDNN 2 keeps a pointer to it.
  const auto operation = TESSERA_ONEDNN(Forward::desc(kind, l.algorithm, l.x, l.weight, l.bias, l.y,
                                                      l.stride, l.dilation, l.padding, l.padding));
  const auto make = [&] {
    return TESSERA_ONEDNN(Forward::primitive_desc(operation, l.attributes, engine(),
                                                  l.is_winograd()));
  };
#endif
  return l.has_few_channels && !l.is_winograd() ? direct_or_first(make) : make();
}

dnnl::convolution_backward_data::primitive_desc describe_input_gradient(const Layouts& l) {
  using Backward = dnnl::convolution_backward_data;
  const auto forward = describe_forward(l);
  if (!forward) return {};
#if DNNL_VERSION_MAJOR >= 3
  return TESSERA_ONEDNN(Backward::primitive_desc(engine(), l.algorithm, l.x, l.weight, l.y,
                                                 l.stride, l.dilation, l.padding, l.padding,
                                                 forward, l.attributes, l.is_winograd()));
#else
  return TESSERA_ONEDNN(Backward::primitive_desc(
      {l.algorithm, l.x, l.weight, l.y, l.stride, l.dilation, l.padding, l.padding}, l.attributes,
      engine(), forward, l.is_winograd()));
#endif
}

dnnl::convolution_backward_weights::primitive_desc describe_weight_gradient(const Layouts& l) {
  using Backward = dnnl::convolution_backward_weights;
  const auto forward = describe_forward(l);
  if (!forward) return {};
#if DNNL_VERSION_MAJOR >= 3
  const auto make = [&] {
    return TESSERA_ONEDNN(Backward::primitive_desc(engine(), l.algorithm, l.x, l.dweight, l.y,
                                                   l.stride, l.dilation, l.padding, l.padding,
                                                   forward, l.attributes, l.is_winograd()));
  };
#else
  const auto operation = TESSERA_ONEDNN(Backward::desc(l.algorithm, l.x, l.dweight, l.y, l.stride,
                                                       l.dilation, l.padding, l.padding));
  const auto make = [&] {
    return TESSERA_ONEDNN(Backward::primitive_desc(operation, l.attributes, engine(), forward,
                                                   l.is_winograd()));
  };
#endif
  return l.strides_few_channels ? without_1x1(make) : make();
}

template <class Primitive, class Description>
Call make_call(const Description& description,
               std::initializer_list<std::pair<int, dnnl::memory::desc>> arguments) {
  Call call;
  call.primitive = TESSERA_ONEDNN(Primitive(description));
  const auto add = [&](int name, const dnnl::memory::desc& desc) {
    call.arguments.emplace(name, TESSERA_ONEDNN(dnnl::memory(desc, engine(), nullptr)));
  };
  for (const auto& [name, desc] : arguments) {
    if (!desc.is_zero()) add(name, desc);
  }
  const auto scratchpad = description.scratchpad_desc();
  call.scratchpad_bytes = static_cast<int64_t>(scratchpad.get_size());
  if (call.scratchpad_bytes > 0) add(DNNL_ARG_SCRATCHPAD, scratchpad);
  return call;
}

Operand make_operand(const Layouts& l, const dnnl::memory::desc& plain,
                     const dnnl::memory::desc& packed, bool is_destination) {
  Operand operand;
  if (plain == packed) return operand;
  const auto& [from, to] = is_destination ? std::tie(packed, plain) : std::tie(plain, packed);
  using Description = dnnl::reorder::primitive_desc;
  const auto description =
      TESSERA_ONEDNN(Description(engine(), from, engine(), to, l.attributes));
  operand.reorder =
      make_call<dnnl::reorder>(description, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  constexpr int64_t line = 64;
  operand.packed_bytes = (static_cast<int64_t>(packed.get_size()) + line - 1) / line * line;
  return operand;
}

/// oneDNN's argument names of x, weight and y in a pass.
std::array<int, 3> names_of(Conv2dPass pass) {
  switch (pass) {
    case Conv2dPass::forward: return {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    case Conv2dPass::input_gradient:
      return {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST};
    case Conv2dPass::weight_gradient: break;
  }
  return {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST};
}

/// The index of the tensor that the pass writes: 0 for x, 1 for weight, 2 for y.
size_t destination_of(Conv2dPass pass) {
  return pass == Conv2dPass::forward ? 2 : pass == Conv2dPass::input_gradient ? 0 : 1;
}

/// `packed` has the library's layouts of x, weight and y.
template <class Primitive, class Description>
Convolution make_convolution(const Layouts& l, Conv2dPass pass, const Description& description,
                             const std::array<dnnl::memory::desc, 3>& packed) {
  const auto names = names_of(pass);
  Convolution made;
  made.call = make_call<Primitive>(description, {{names[0], packed[0]}, {names[1], packed[1]},
                                                 {names[2], packed[2]}, {DNNL_ARG_BIAS, l.bias}});
  const dnnl::memory::desc plain[] = {l.plain_x, l.plain_weight, l.plain_y};
  for (size_t i = 0; i < packed.size(); ++i) {
    const bool is_destination = i == destination_of(pass);
    made.operands[i] = make_operand(l, plain[i], packed[i], is_destination);
  }
  return made;
}

/// Returns nullopt if the library does not have the algorithm for the problem.
std::optional<Convolution> make_convolution(const Problem& problem, dnnl::algorithm algorithm) {
  const Layouts l = layouts_of(problem, algorithm);
  const auto pass = static_cast<Conv2dPass>(problem.pass);
  switch (pass) {
    case Conv2dPass::forward: {
      const auto d = describe_forward(l);
      if (!d) return std::nullopt;
      return make_convolution<dnnl::convolution_forward>(
          l, pass, d, {d.src_desc(), d.weights_desc(), d.dst_desc()});
    }
    case Conv2dPass::input_gradient: {
      const auto d = describe_input_gradient(l);
      if (!d) return std::nullopt;
      return make_convolution<dnnl::convolution_backward_data>(
          l, pass, d, {d.diff_src_desc(), d.weights_desc(), d.diff_dst_desc()});
    }
    case Conv2dPass::weight_gradient: break;
  }
  const auto d = describe_weight_gradient(l);
  if (!d) return std::nullopt;
  return make_convolution<dnnl::convolution_backward_weights>(
      l, pass, d, {d.src_desc(), d.diff_weights_desc(), d.diff_dst_desc()});
}

Convolution make_convolution(const Problem& problem) {
  if (suits_winograd(problem)) {
    auto made = make_convolution(problem, dnnl::algorithm::convolution_winograd);
    if (made) return *std::move(made);
  }
  return make_convolution(problem, dnnl::algorithm::convolution_direct).value();
}

// One cache per thread, because every call sets the addresses in a primitive's memory objects.
PrimitiveCache<Problem, Convolution>& convolutions() {
  thread_local PrimitiveCache<Problem, Convolution> own;
  return own;
}

Convolution& find_convolution(const ConvArgs& args, int threads) {
  const Problem problem{.sizes = args.sizes,
                        .pass = static_cast<int64_t>(args.pass),
                        .dtype = static_cast<int64_t>(args.dtype),
                        .has_bias = args.has_bias,
                        .threads = threads};
  return convolutions().find(problem, [](const Problem& p) { return make_convolution(p); });
}

int team_size() { return omp_in_parallel() ? 1 : thread_count(); }

}  // namespace

void convolve(const ConvArgs& args, const ConvMemory& memory) {
  const TeamSize team(team_size());
  Convolution& convolution = find_convolution(args, team_size());
  auto& operands = convolution.operands;
  const auto names = names_of(args.pass);
  void* const plain[] = {memory.x, memory.weight, memory.y};
  Operand& destination = operands[destination_of(args.pass)];
  auto* const workspace = static_cast<std::byte*>(memory.workspace);
  void* const scratchpad = workspace + convolution.packed_bytes();
  // Inputs are reordered before the convolution, the destination after it.
  std::byte* packed = workspace;
  for (size_t i = 0; i < operands.size(); ++i) {
    Operand& operand = operands[i];
    const bool is_packed = operand.packed_bytes > 0;
    convolution.call.set(names[i], is_packed ? packed : plain[i]);
    if (!is_packed) continue;
    const bool is_destination = &operand == &destination;
    operand.reorder.set(is_destination ? DNNL_ARG_FROM : DNNL_ARG_TO, packed);
    operand.reorder.set(is_destination ? DNNL_ARG_TO : DNNL_ARG_FROM, plain[i]);
    if (!is_destination) operand.reorder.run(scratchpad);
    packed += operand.packed_bytes;
  }
  if (args.has_bias) convolution.call.set(DNNL_ARG_BIAS, memory.bias);
  convolution.call.run(scratchpad);
  if (destination.packed_bytes > 0) destination.reorder.run(scratchpad);
}

int64_t conv_workspace_bytes(const ConvArgs& args) {
  const TeamSize team(team_size());
  return find_convolution(args, team_size()).workspace_bytes();
}

int64_t kept_convolutions() { return convolutions().size(); }

}  // namespace tessera::cpu::onednn
