#include "core/cpu/onednn_version.h"

#include <array>
#include <utility>

#include "core/cpu/onednn_library.h"

namespace tessera::cpu::onednn {
namespace {

template <class Value, size_t count>
std::string name_in(const std::array<std::pair<Value, const char*>, count>& names, Value value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  return fmt::format("{:#x}", static_cast<int>(value));  // the value is newer than the list
}

using Isa = dnnl::cpu_isa;
constexpr std::array<std::pair<Isa, const char*>, 8> isa_names = {{
    {Isa::sse41, "sse41"},
    {Isa::avx, "avx"},
    {Isa::avx2, "avx2"},
    {Isa::avx2_vnni, "avx2_vnni"},
    {Isa::avx512_core, "avx512_core"},
    {Isa::avx512_core_vnni, "avx512_core_vnni"},
    {Isa::avx512_core_bf16, "avx512_core_bf16"},
    {Isa::avx512_core_amx, "avx512_core_amx"},
}};

using Mode = dnnl::fpmath_mode;
constexpr std::array<std::pair<Mode, const char*>, 4> mode_names = {{
    {Mode::strict, "strict"},
    {Mode::bf16, "bf16"},
    {Mode::f16, "f16"},
    {Mode::any, "any"},
}};

}  // namespace

Library library() {
  const dnnl_version_t* const version = dnnl_version();
  return {
      .version = fmt::format("{}.{}.{}", version->major, version->minor, version->patch),
      .instructions = name_in(isa_names, dnnl::get_effective_cpu_isa()),
      .math_mode = name_in(mode_names, TESSERA_ONEDNN(dnnl::get_default_fpmath_mode())),
  };
}

}  // namespace tessera::cpu::onednn
