#include <algorithm>
#include <cctype>
#include <sstream>

#include "apps/recommend_options.h"
#include "apps/train_gpt_options.h"
#include "apps/train_recommender_options.h"
#include "apps/train_resnet_options.h"
#include "core/text/json_read.h"
#include "tests/hostile/readers.h"

namespace tessera::hostile {
namespace {

// Returns the names of options: a and b for "a = 1\nb = 2\n".
std::vector<std::string> names_in(const std::string& options) {
  std::vector<std::string> names;
  std::istringstream text(options);
  for (std::string line; std::getline(text, line);) {
    if (line[0] != '#') names.push_back(line.substr(0, line.find_first_of(" =")));
  }
  return names;
}

bool has_word(const std::string& text, const std::string& word) {
  const auto is_letter = [&](size_t i) {
    return i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) != 0);
  };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    if (!(at > 0 && is_letter(at - 1)) && !is_letter(at + word.size())) return true;
  }
  return false;
}

// Returns a function that checks a refusal's text. `options` is the file's contents before it was
// damaged. The text must name one of these options or the file. The refusal of an option's value
// names the option. The refusal of a line that is not an option names the file.
auto says_option_or_file(const std::string& options) {
  return [names = names_in(options)](const std::string& text, const FileContents& files) {
    return text.find(files[0].name) != std::string::npos ||
           std::ranges::any_of(names, [&](const auto& name) { return has_word(text, name); });
  };
}

void read_gpt_options(const std::string& folder) {
  const std::string path = folder + "/run.ini";
  const char* const arguments[] = {"train_gpt", "--data", "text.txt", "--config", path.c_str()};
  apps::parse_command_line(5, arguments);
}

void read_image_options(const std::string& folder) {
  const std::string path = folder + "/run.ini";
  const char* const arguments[] = {"train_resnet", "--config", path.c_str()};
  apps::ImageCommandLine line = apps::parse_image_command_line(3, arguments);
  apps::complete(line, 1000, "drawn");
}

void read_recommender_options(const std::string& folder) {
  const std::string path = folder + "/run.ini";
  const char* const arguments[] = {"train_recommender", "--config", path.c_str()};
  apps::RecommenderCommandLine line = apps::parse_recommender_command_line(3, arguments);
  apps::complete(line, 1000);
}

// Splits a text into arguments, one per line.
std::vector<std::string> arguments_in(const std::string& text) {
  std::vector<std::string> arguments;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) arguments.push_back(line);
  return arguments;
}

void read_recommend_command(const std::string& folder) {
  const std::vector<std::string> arguments =
      arguments_in(read_text_file(folder + "/command.txt", 1 << 20));
  std::vector<const char*> argv{"recommend"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  apps::parse_recommend_command_line(static_cast<int>(argv.size()), argv.data());
}

// A refusal must name a file or a flag, or say that an argument or its brackets are wrong.
bool says_flag_or_file(const std::string& text, const FileContents& files) {
  return text.find(files[0].name) != std::string::npos || text.find("--") != std::string::npos ||
         has_word(text, "argument") || has_word(text, "brackets");
}

}  // namespace

std::vector<Reader> option_readers() {
  const std::string recommender =
      "epochs = 2.5\nmodel = neumf\nhidden = \"8,4\"\nbatch = 32\nmicro-batch = 16\n"
      "objective = ranking\nloss = bpr\nnegatives = 2\nl2 = 0.01\ntop = 5\nsplit = last\n"
      "sampled-items = 99\nfactors = 4\ndata = u.txt\ncolumns = \"user,item\"\n";
  const std::string command =
      "--model\nm.safetensors\n--user=196\n--user\nb c\n--top\n5\n--items=u.item\n--all\n"
      "--device\ncpu\n--threads=2\n";
  const std::string gpt =
      "# a run\nsteps = 20\npreset = \"nano\"\nlayers = 2\nlr=0.001\nwarmup = 3\nstage = 2\n"
      "recompute = true\nprecision = bf16\nseed = 5\nbucket-bytes = 4096\noverlap = off\n";
  const std::string image =
      "epochs = 2.5\nmodel = resnet20\nbatch = 32\nmicro-batch = 16\noptimizer = \"sgd\"\n"
      "label-smoothing = 0.1\nsync-bn = false\nworkers = 2\nschedule = cosine\n";
  return {{.name = "config_gpt",
           .variants = {{{"run.ini", gpt, Form::text}}},
           .read = read_gpt_options,
           .says_where = says_option_or_file(gpt)},
          {.name = "config_resnet",
           .variants = {{{"run.ini", image, Form::text}}},
           .read = read_image_options,
           .says_where = says_option_or_file(image)},
          {.name = "config_recommender",
           .variants = {{{"run.ini", recommender, Form::text}}},
           .read = read_recommender_options,
           .says_where = says_option_or_file(recommender)},
          {.name = "command_recommend",
           .variants = {{{"command.txt", command, Form::text}}},
           .read = read_recommend_command,
           .says_where = says_flag_or_file}};
}

}  // namespace tessera::hostile
