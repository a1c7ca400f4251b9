// Reads the titles of items, which are shown with recommendations.
#pragma once

#include <map>
#include <string>

namespace tessera::data {

/// Returns the title of each item, in UTF-8, by the item's id. The file may be compressed by gzip.
/// The first line determines the format, whatever the file's name:
///
///   u.item         MovieLens: ID|TITLE|...
///   movies.dat     MovieLens: ID::TITLE::GENRES
///   movies.csv     a header with movieId (or itemId, item_id) and title; fields may be quoted
///   NAME.item      RecBole: fields between tabs; a header with item_id:token and a field called
///                  title, name or ..._title
///
/// If a file of the first two formats is not UTF-8, it is read as Latin-1, which MovieLens uses.
/// Throws InputError
///  - for a file that TextLines refuses (data/files/text_lines.h),
///  - for an empty file, or a header without titles below it,
///  - for any other format,
///  - in the last two formats, for a line below the header that is not UTF-8,
///  - for a line that has more or fewer fields than the first line,
///  - for an item without an id,
///  - for an id or a title with a control character (is_control_character),
///  - for an id that occurs twice.
/// The message has the file and, if the error is in a line, the line's number.
///
/// Ids and titles may have U+0080 to U+009F. For instance, if a file in Windows-1252 is read as
/// Latin-1, its quotes and dashes become such characters. A terminal may obey these characters, so
/// programs print ids and titles through with_escaped_controls.
std::map<std::string, std::string> read_item_titles(const std::string& path);

}  // namespace tessera::data
