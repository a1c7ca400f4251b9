#include "core/onednn_conv.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/context.h"
#include "core/onednn_library.h"

namespace tessera::cpu::onednn {
namespace {

/// All that a primitive depends on: one is made for each value and kept.
struct Problem {
  Conv2dSizes sizes;
  int64_t pass, dtype, has_bias, threads;

  bool operator==(const Problem&) const = default;
};

/// One call of the library, without addresses.
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

/// A convolution, and what moves the weight into the library's layout, or its gradient out of it.
/// The workspace has the weight in that layout first, then the scratchpad of one call at a time.
struct Convolution {
  Call call;
  Call reorder;              // none where the layouts are the same
  int64_t packed_bytes = 0;  // in whole cache lines

  int64_t workspace_bytes() const {
    return packed_bytes + std::max(call.scratchpad_bytes, reorder.scratchpad_bytes);
  }
};

/// The tensors of a convolution in the library's terms.
struct Layouts {
  dnnl::memory::desc x, y, bias;
  dnnl::memory::desc weight, dweight;  // in whichever layout the library likes
  dnnl::memory::desc plain_weight;     // in torch's; also of the gradient
  dnnl::memory::dims stride, dilation, padding;
  bool strides_few_channels = false;
  bool has_few_channels = false;
  dnnl::primitive_attr attributes;
};

Layouts layouts_of(const Problem& p) {
  using Tag = dnnl::memory::format_tag;
  const Conv2dSizes& s = p.sizes;
  const auto& [stride, padding, dilation, groups] = s.options;
  const auto type = data_type(static_cast<DType>(p.dtype));
  dnnl::memory::dims weight{s.out_channels / groups, s.group_channels(), s.kernel_height,
                            s.kernel_width};
  if (groups > 1) weight.insert(weight.begin(), groups);
  Layouts l;
  l.x = {{s.images, s.channels, s.height, s.width}, type, Tag::nhwc};
  l.y = {{s.images, s.out_channels, s.out_height, s.out_width}, type, Tag::nhwc};
  if (p.has_bias) l.bias = {{s.out_channels}, type, Tag::a};
  l.weight = {weight, type, Tag::any};
  l.dweight = {weight, dnnl::memory::data_type::f32, Tag::any};
  l.plain_weight = {weight, type, groups > 1 ? Tag::goihw : Tag::oihw};
  l.stride = {stride.height, stride.width};
  l.dilation = {dilation.height - 1, dilation.width - 1};
  l.padding = {padding.height, padding.width};
  l.has_few_channels = s.group_channels() <= 32;
  constexpr int64_t widest_vector = 16;  // of f32
  l.strides_few_channels = s.kernel_height * s.kernel_width == 1 && stride != Size2(1) &&
                           s.group_channels() < widest_vector;
  l.attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return l;
}

// For few input channels the library's first choice, a batch of small matrix products ("brg..."),
// is slower than its direct convolution: ResNet-20's first layer takes 0.83 ms against 0.55, its
// strided 1x1 layers 0.23 against 0.16.
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

// The weight gradient of version 2's 1x1 convolutions with a stride writes behind its scratchpad
// where a pixel has fewer channels than a vector holds.
template <class Make>
auto without_1x1(Make&& make) {
  auto chosen = make();
  while (std::string_view(chosen.impl_info_str()).find("1x1") != std::string_view::npos) {
    TESSERA_CHECK(chosen.next_impl(), "conv2d: oneDNN has no weight gradient for a 1x1 kernel with "
                                      "a stride and fewer than 16 channels");
  }
  return chosen;
}

constexpr auto algorithm = dnnl::algorithm::convolution_direct;

dnnl::convolution_forward::primitive_desc describe_forward(const Layouts& l) {
  using Forward = dnnl::convolution_forward;
  constexpr auto kind = dnnl::prop_kind::forward_training;
#if DNNL_VERSION_MAJOR >= 3
  const auto make = [&] {
    return TESSERA_ONEDNN(Forward::primitive_desc(engine(), kind, algorithm, l.x, l.weight, l.bias,
                                                  l.y, l.stride, l.dilation, l.padding, l.padding,
                                                  l.attributes));
  };
#else
  // Lives as long as the search: version 2 keeps a pointer to it.
  const auto operation = TESSERA_ONEDNN(Forward::desc(kind, algorithm, l.x, l.weight, l.bias, l.y,
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
  return TESSERA_ONEDNN(Backward::primitive_desc(engine(), algorithm, l.x, l.weight, l.y, l.stride,
                                                 l.dilation, l.padding, l.padding, forward,
                                                 l.attributes));
#else
  return TESSERA_ONEDNN(Backward::primitive_desc(
      {algorithm, l.x, l.weight, l.y, l.stride, l.dilation, l.padding, l.padding}, l.attributes,
      engine(), forward));
#endif
}

dnnl::convolution_backward_weights::primitive_desc describe_weight_gradient(const Layouts& l) {
  using Backward = dnnl::convolution_backward_weights;
  const auto forward = describe_forward(l);
#if DNNL_VERSION_MAJOR >= 3
  const auto make = [&] {
    return TESSERA_ONEDNN(Backward::primitive_desc(engine(), algorithm, l.x, l.dweight, l.y,
                                                   l.stride, l.dilation, l.padding, l.padding,
                                                   forward, l.attributes));
  };
#else
  const auto operation = TESSERA_ONEDNN(Backward::desc(algorithm, l.x, l.dweight, l.y, l.stride,
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

void add_reorder(Convolution& convolution, const Layouts& l, const dnnl::memory::desc& from,
                 const dnnl::memory::desc& to) {
  if (from == to) return;
  using Description = dnnl::reorder::primitive_desc;
  const auto description =
      TESSERA_ONEDNN(Description(engine(), from, engine(), to, l.attributes));
  convolution.reorder =
      make_call<dnnl::reorder>(description, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  constexpr int64_t line = 64;
  const auto bytes = static_cast<int64_t>((from == l.plain_weight ? to : from).get_size());
  convolution.packed_bytes = (bytes + line - 1) / line * line;
}

Convolution make_convolution(const Problem& problem) {
  const Layouts l = layouts_of(problem);
  Convolution made;
  switch (static_cast<Conv2dPass>(problem.pass)) {
    case Conv2dPass::forward: {
      const auto description = describe_forward(l);
      const auto weight = description.weights_desc();
      made.call = make_call<dnnl::convolution_forward>(
          description, {{DNNL_ARG_SRC, l.x}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_BIAS, l.bias},
                        {DNNL_ARG_DST, l.y}});
      add_reorder(made, l, l.plain_weight, weight);
      break;
    }
    case Conv2dPass::input_gradient: {
      const auto description = describe_input_gradient(l);
      const auto weight = description.weights_desc();
      made.call = make_call<dnnl::convolution_backward_data>(
          description, {{DNNL_ARG_DIFF_SRC, l.x}, {DNNL_ARG_WEIGHTS, weight},
                        {DNNL_ARG_DIFF_DST, l.y}});
      add_reorder(made, l, l.plain_weight, weight);
      break;
    }
    case Conv2dPass::weight_gradient: {
      const auto description = describe_weight_gradient(l);
      const auto dweight = description.diff_weights_desc();
      made.call = make_call<dnnl::convolution_backward_weights>(
          description, {{DNNL_ARG_SRC, l.x}, {DNNL_ARG_DIFF_WEIGHTS, dweight},
                        {DNNL_ARG_DIFF_DST, l.y}});
      add_reorder(made, l, dweight, l.plain_weight);
      break;
    }
  }
  return made;
}

Convolution& find_convolution(const ConvArgs& args, int threads) {
  // Each thread keeps its own, as those of products (core/onednn.cpp).
  thread_local std::unordered_map<Problem, Convolution, ProblemHash<Problem>> convolutions;
  const Problem problem{.sizes = args.sizes,
                        .pass = static_cast<int64_t>(args.pass),
                        .dtype = static_cast<int64_t>(args.dtype),
                        .has_bias = args.has_bias,
                        .threads = threads};
  const auto found = convolutions.find(problem);
  if (found != convolutions.end()) return found->second;
  return convolutions.emplace(problem, make_convolution(problem)).first->second;
}

int team_size() { return omp_in_parallel() ? 1 : thread_count(); }

}  // namespace

void convolve(const ConvArgs& args, const ConvMemory& memory) {
  const TeamSize team(team_size());
  auto& [call, reorder, packed_bytes] = find_convolution(args, team_size());
  const bool is_packed = packed_bytes > 0;
  void* const packed = is_packed ? memory.workspace : memory.weight;
  void* const scratchpad = static_cast<std::byte*>(memory.workspace) + packed_bytes;
  const bool is_forward = args.pass == Conv2dPass::forward;
  const bool has_dweight = args.pass == Conv2dPass::weight_gradient;
  call.set(args.pass == Conv2dPass::input_gradient ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, memory.x);
  call.set(has_dweight ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, packed);
  call.set(is_forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, memory.y);
  if (args.has_bias) call.set(DNNL_ARG_BIAS, memory.bias);
  if (is_packed) {
    reorder.set(has_dweight ? DNNL_ARG_FROM : DNNL_ARG_TO, packed);
    reorder.set(has_dweight ? DNNL_ARG_TO : DNNL_ARG_FROM, memory.weight);
  }
  if (is_packed && !has_dweight) reorder.run(scratchpad);
  call.run(scratchpad);
  if (is_packed && has_dweight) reorder.run(scratchpad);
}

int64_t conv_workspace_bytes(const ConvArgs& args) {
  const TeamSize team(team_size());
  return find_convolution(args, team_size()).workspace_bytes();
}

}  // namespace tessera::cpu::onednn
