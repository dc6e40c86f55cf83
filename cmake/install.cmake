# cmake --install: libraries, headers, the program, and a package for find_package(weft).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS weft_core weft_checkpoint weft_mask weft_estimate weft_pack weft_kernel weft_plan weft_layer
  weft_recipe weft_prune weft_data weft_run weft_decode weft_report EXPORT weft)
# On its own, because who uses it must have libtorch: find_package(weft COMPONENTS train).
if(WEFT_TORCH)
  install(TARGETS weft_torch weft_train EXPORT weft_train)
  install(EXPORT weft_train NAMESPACE weft:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/weft
    FILE weftTrainTargets.cmake)
endif()
if(WEFT_CLI)
  install(TARGETS weft_cli)
  if(WEFT_TORCH)
    install(TARGETS weft_train_cli)
  endif()
endif()
# Headers that only weft's own sources include stay at home.
install(DIRECTORY weft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h"
  PATTERN byte_source.h EXCLUDE
  PATTERN keep_row.h EXCLUDE
  PATTERN read_file.h EXCLUDE
  PATTERN tensor_entries.h EXCLUDE
  PATTERN algorithms.h EXCLUDE
  PATTERN elements.h EXCLUDE
  PATTERN onednn.h EXCLUDE
  PATTERN onednn_conv.h EXCLUDE
  PATTERN onednn_describe.h EXCLUDE
  PATTERN softmax_rows.h EXCLUDE
  PATTERN group_check.h EXCLUDE
  PATTERN groups-inl.h EXCLUDE
  PATTERN kept_sample.h EXCLUDE
  PATTERN largest_of.h EXCLUDE
  PATTERN narrow.h EXCLUDE
  PATTERN packed_parts.h EXCLUDE
  PATTERN panel_layout.h EXCLUDE
  PATTERN place_slots.h EXCLUDE
  PATTERN routed_weight.h EXCLUDE
  PATTERN sample_columns.h EXCLUDE
  PATTERN sections.h EXCLUDE
  PATTERN state_tensors.h EXCLUDE
  PATTERN tensor_math.h EXCLUDE
  PATTERN sharing.h EXCLUDE
  PATTERN stream_groups.h EXCLUDE
  PATTERN taps.h EXCLUDE
  PATTERN tile.h EXCLUDE)
install(FILES ${PROJECT_BINARY_DIR}/weft/core/version.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft/core)
install(EXPORT weft NAMESPACE weft:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/weft
  FILE weftTargets.cmake)
configure_package_config_file(cmake/weftConfig.cmake.in weftConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
write_basic_package_version_file(weftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/weftConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/weftConfigVersion.cmake cmake/torch.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
