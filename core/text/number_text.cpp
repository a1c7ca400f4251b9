#include "core/text/number_text.h"

namespace tessera {

std::string grouped(int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool after_digit = i > 0 && digits[i - 1] != '-';
    if (after_digit && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string counted(int64_t number, std::string_view noun, std::string_view plural) {
  std::string text = grouped(number) + ' ';
  if (number == 1 || plural.empty()) {
    text += noun;
    return number == 1 ? text : text + 's';
  }
  return text.append(plural);
}

}  // namespace tessera
