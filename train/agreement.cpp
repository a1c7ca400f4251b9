#include "train/agreement.h"

#include <elf.h>
#include <link.h>

#include <cstring>
#include <string_view>

#include "core/context.h"
#include "core/cpu/onednn_version.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/text/number_text.h"
#include "train/report/run_log.h"

namespace tessera::train {
namespace {

// Finds the build id among the notes of an ELF segment. Returns an empty text if there is none. A
// note has a header, a name and a description. Name and description are each padded to a multiple
// of 4 bytes.
std::string build_id_in(const char* notes, size_t bytes) {
  const auto filled = [](size_t size) { return (size + 3) / 4 * 4; };
  ElfW(Nhdr) header;
  while (bytes >= sizeof(header)) {
    std::memcpy(&header, notes, sizeof(header));
    const size_t size = sizeof(header) + filled(header.n_namesz) + filled(header.n_descsz);
    if (size > bytes) break;
    const std::string_view name(notes + sizeof(header), header.n_namesz);
    if (header.n_type == NT_GNU_BUILD_ID && name == std::string_view("GNU\0", 4)) {
      const char* const id = notes + sizeof(header) + filled(header.n_namesz);
      std::string text;
      for (size_t i = 0; i < header.n_descsz; ++i) {
        text += fmt::format("{:02x}", static_cast<unsigned char>(id[i]));
      }
      return text;
    }
    notes += size;
    bytes -= size;
  }
  return "";
}

// Returns the build id that the linker has written into the program, or "none". The program is the
// first object that dl_iterate_phdr visits.
std::string build_id() {
  std::string id;
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* result) {
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = object->dlpi_phdr[i];
          if (segment.p_type != PT_NOTE) continue;
          const auto* const notes =
              reinterpret_cast<const char*>(object->dlpi_addr + segment.p_vaddr);
          std::string found = build_id_in(notes, segment.p_memsz);
          if (!found.empty()) *static_cast<std::string*>(result) = std::move(found);
        }
        return 1;  // ends the iteration after the first object
      },
      &id);
  return id.empty() ? "none" : id;
}

}  // namespace

dist::Settings program_settings(const std::string& program) {
  return {{"program", fmt::format("{} {}", program, version())}, {"build", build_id()}};
}

dist::Settings processor_settings(const dist::World& world) {
  if (!world.communicator->device().is_cpu()) return {};
  const cpu::onednn::Library library = cpu::onednn::library();
  return {{"--threads or OMP_NUM_THREADS", std::to_string(thread_count())},
          {"oneDNN", library.version},
          {"instruction set", library.instructions},
          {"ONEDNN_DEFAULT_FPMATH_MODE", library.math_mode}};
}

dist::Setting file_setting(const std::string& flag, const std::string& path, bool whole) {
  if (path.empty()) return {flag, "no file"};
  const FileDigest file = digest_of_file(path, whole);
  return {flag, fmt::format("{} bytes with digest {:016x}", grouped(file.bytes), file.digest)};
}

}  // namespace tessera::train
