// The style sheet of a report: all colours, light and dark, and the print form.
#pragma once

namespace weft {

// For <style>; nothing in it comes from outside.
const char* page_style();

}  // namespace weft
