#include "train/report/layout_line.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tessera::train {
namespace {

std::string array(const std::vector<std::string>& elements) {
  return fmt::format("[{}]", fmt::join(elements, ","));
}

std::string bucket_json(const optim::OwnedBucket& bucket) {
  std::vector<std::string> parameters;
  for (const auto& [name, offset, elements] : bucket.parameters) {
    parameters.push_back(fmt::format("[{},{},{}]", json_string(name), offset, elements));
  }
  return JsonObject()
      .add("elements", bucket.elements)
      .add("shard", bucket.shard)
      .raw("parameters", array(parameters))
      .text();
}

}  // namespace

JsonObject layout_json(const optim::Ownership& ownership) {
  std::vector<std::string> groups;
  for (const optim::OwnedGroup& group : ownership.groups) {
    std::vector<std::string> buckets;
    for (const optim::OwnedBucket& bucket : group.buckets) buckets.push_back(bucket_json(bucket));
    groups.push_back(JsonObject()
                         .add("dtype", dtype_name(group.dtype))
                         .add("trainable", group.trainable)
                         .add("sum_bytes", group.sum_bytes)
                         .add("state_bytes", group.state_bytes)
                         .add("gradients_in_sums", group.gradients_in_sums)
                         .raw("buckets", array(buckets))
                         .text());
  }
  std::vector<std::string> tables;
  for (const optim::OwnedTable& table : ownership.tables) {
    tables.push_back(JsonObject()
                         .add("name", table.name)
                         .add("dtype", dtype_name(table.dtype))
                         .add("rows", table.rows)
                         .add("width", table.width)
                         .add("rows_per_rank", table.rows_per_rank)
                         .add("row_state_bytes", table.row_state_bytes)
                         .text());
  }
  return JsonObject()
      .raw("groups", array(groups))
      .raw("tables", array(tables));
}

}  // namespace tessera::train
