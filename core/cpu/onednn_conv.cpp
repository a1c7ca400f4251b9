#include "core/cpu/onednn_conv.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
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

/// A convolution and the reorder of its weight between the caller's layout and the library's. The
/// workspace begins with the weight in the library's layout. Then comes the scratchpad, which the
/// convolution and the reorder use one after the other.
struct Convolution {
  Call call;
  Call reorder;              // empty if layouts and dtypes are equal
  int64_t weight_bytes = 0;  // in the library's layout, in whole cache lines; 0 without a reorder

  int64_t workspace_bytes() const {
    return weight_bytes + std::max(call.scratchpad_bytes, reorder.scratchpad_bytes);
  }
};

/// The tensors of a convolution in the library's terms.
struct Layouts {
  dnnl::memory::desc x, y, bias;       // x and y also describe dx and dy
  dnnl::memory::desc weight, dweight;  // in the layout that the library chooses; dweight in f32
  dnnl::memory::desc plain_weight;     // the caller's layout of the weight and its gradient
  dnnl::memory::dims stride, dilation, padding;
  bool strides_few_channels = false;
  bool has_few_channels = false;
  dnnl::primitive_attr attributes;
};

constexpr auto direct = dnnl::algorithm::convolution_direct;

Layouts layouts_of(const Problem& p) {
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
  l.x = {x, type, Tag::nhwc};
  l.y = {y, type, Tag::nhwc};
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

// Returns the implementation for a convolution with few input channels. If oneDNN's first choice is
// a batch of small matrix products ("brg..."), returns the next choice with direct sums ("jit..."),
// if there is one. Direct sums are faster: ResNet-20's first layer takes 0.55 ms instead of
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

// Returns the first implementation of the weight gradient that is not specialised for 1x1 kernels.
// Throws if there is none. oneDNN 2's implementations for 1x1 kernels write beyond their scratchpad
// if the convolution has a stride and a pixel's channels do not fill a vector.
template <class Make>
auto without_1x1(Make&& make) {
  auto chosen = make();
  while (std::string_view(chosen.impl_info_str()).find("1x1") != std::string_view::npos) {
    TESSERA_CHECK(chosen.next_impl(), "conv2d: oneDNN has no weight gradient for a 1x1 kernel with "
                                      "a stride and fewer than 16 channels");
  }
  return chosen;
}

dnnl::convolution_forward::primitive_desc describe_forward(const Layouts& l) {
  using Forward = dnnl::convolution_forward;
  constexpr auto kind = dnnl::prop_kind::forward_training;
#if DNNL_VERSION_MAJOR >= 3
  const auto make = [&] {
    return TESSERA_ONEDNN(Forward::primitive_desc(engine(), kind, direct, l.x, l.weight, l.bias,
                                                  l.y, l.stride, l.dilation, l.padding, l.padding,
                                                  l.attributes));
  };
#else
  // `operation` must outlive the search for an implementation: oneDNN 2 keeps a pointer to it.
  const auto operation = TESSERA_ONEDNN(Forward::desc(kind, direct, l.x, l.weight, l.bias, l.y,
                                                      l.stride, l.dilation, l.padding, l.padding));
  const auto make = [&] {
    return TESSERA_ONEDNN(Forward::primitive_desc(operation, l.attributes, engine()));
  };
#endif
  return l.has_few_channels ? direct_or_first(make) : make();
}

dnnl::convolution_backward_data::primitive_desc describe_input_gradient(const Layouts& l) {
  using Backward = dnnl::convolution_backward_data;
  const auto forward = describe_forward(l);
#if DNNL_VERSION_MAJOR >= 3
  return TESSERA_ONEDNN(Backward::primitive_desc(engine(), direct, l.x, l.weight, l.y, l.stride,
                                                 l.dilation, l.padding, l.padding, forward,
                                                 l.attributes));
#else
  return TESSERA_ONEDNN(Backward::primitive_desc(
      {direct, l.x, l.weight, l.y, l.stride, l.dilation, l.padding, l.padding}, l.attributes,
      engine(), forward));
#endif
}

dnnl::convolution_backward_weights::primitive_desc describe_weight_gradient(const Layouts& l) {
  using Backward = dnnl::convolution_backward_weights;
  const auto forward = describe_forward(l);
#if DNNL_VERSION_MAJOR >= 3
  const auto make = [&] {
    return TESSERA_ONEDNN(Backward::primitive_desc(engine(), direct, l.x, l.dweight, l.y, l.stride,
                                                   l.dilation, l.padding, l.padding, forward,
                                                   l.attributes));
  };
#else
  const auto operation = TESSERA_ONEDNN(Backward::desc(direct, l.x, l.dweight, l.y, l.stride,
                                                       l.dilation, l.padding, l.padding));
  const auto make = [&] {
    return TESSERA_ONEDNN(Backward::primitive_desc(operation, l.attributes, engine(), forward));
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

/// Adds the reorder between the caller's layout of the weight and the library's layout, `packed`.
void add_reorder(Convolution& made, const Layouts& l, const dnnl::memory::desc& packed,
                 bool is_gradient) {
  if (l.plain_weight == packed) return;
  const auto& [from, to] =
      is_gradient ? std::tie(packed, l.plain_weight) : std::tie(l.plain_weight, packed);
  using Description = dnnl::reorder::primitive_desc;
  const auto description =
      TESSERA_ONEDNN(Description(engine(), from, engine(), to, l.attributes));
  made.reorder = make_call<dnnl::reorder>(description, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  constexpr int64_t line = 64;
  made.weight_bytes = (static_cast<int64_t>(packed.get_size()) + line - 1) / line * line;
}

/// oneDNN's names of a pass's x, weight and y.
struct Names {
  int x, weight, y;
};
Names names_of(Conv2dPass pass) {
  switch (pass) {
    case Conv2dPass::forward: return {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    case Conv2dPass::input_gradient:
      return {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST};
    case Conv2dPass::weight_gradient: break;
  }
  return {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST};
}

Convolution make_convolution(const Problem& problem) {
  const Layouts l = layouts_of(problem);
  const auto pass = static_cast<Conv2dPass>(problem.pass);
  const Names names = names_of(pass);
  Convolution made;
  const auto make = [&]<class Primitive>(const auto& description,
                                         const dnnl::memory::desc& packed) {
    made.call = make_call<Primitive>(description, {{names.x, l.x}, {names.weight, packed},
                                                   {names.y, l.y}, {DNNL_ARG_BIAS, l.bias}});
    add_reorder(made, l, packed, pass == Conv2dPass::weight_gradient);
  };
  switch (pass) {
    case Conv2dPass::forward: {
      const auto d = describe_forward(l);
      make.operator()<dnnl::convolution_forward>(d, d.weights_desc());
      break;
    }
    case Conv2dPass::input_gradient: {
      const auto d = describe_input_gradient(l);
      make.operator()<dnnl::convolution_backward_data>(d, d.weights_desc());
      break;
    }
    case Conv2dPass::weight_gradient: {
      const auto d = describe_weight_gradient(l);
      make.operator()<dnnl::convolution_backward_weights>(d, d.diff_weights_desc());
      break;
    }
  }
  return made;
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
  return convolutions().find(problem, make_convolution);
}

int team_size() { return omp_in_parallel() ? 1 : thread_count(); }

}  // namespace

void convolve(const ConvArgs& args, const ConvMemory& memory) {
  const TeamSize team(team_size());
  Convolution& convolution = find_convolution(args, team_size());
  const Names names = names_of(args.pass);
  const bool has_reorder = convolution.weight_bytes > 0;
  void* const scratchpad = static_cast<std::byte*>(memory.workspace) + convolution.weight_bytes;
  void* const packed = has_reorder ? memory.workspace : memory.weight;
  const bool is_gradient = args.pass == Conv2dPass::weight_gradient;
  if (has_reorder) {
    convolution.reorder.set(is_gradient ? DNNL_ARG_FROM : DNNL_ARG_TO, packed);
    convolution.reorder.set(is_gradient ? DNNL_ARG_TO : DNNL_ARG_FROM, memory.weight);
    if (!is_gradient) convolution.reorder.run(scratchpad);
  }
  convolution.call.set(names.x, memory.x);
  convolution.call.set(names.weight, packed);
  convolution.call.set(names.y, memory.y);
  if (args.has_bias) convolution.call.set(DNNL_ARG_BIAS, memory.bias);
  convolution.call.run(scratchpad);
  if (has_reorder && is_gradient) convolution.reorder.run(scratchpad);
}

int64_t conv_workspace_bytes(const ConvArgs& args) {
  const TeamSize team(team_size());
  return find_convolution(args, team_size()).workspace_bytes();
}

int64_t kept_convolutions() { return convolutions().size(); }

}  // namespace tessera::cpu::onednn
