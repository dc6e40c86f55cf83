# cmake --install: libraries, headers, the program, and a package for find_package(weft).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS weft_core weft_checkpoint weft_mask weft_estimate weft_pack weft_kernel weft_plan weft_layer
  weft_recipe weft_prune weft_data weft_run weft_decode weft_report weft_study EXPORT weft FILE_SET HEADERS)
# On its own, because who uses it must have libtorch: find_package(weft COMPONENTS train).
if(WEFT_TORCH)
  install(TARGETS weft_torch weft_distributed weft_train EXPORT weft_train FILE_SET HEADERS)
  install(EXPORT weft_train NAMESPACE weft:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/weft
    FILE weftTrainTargets.cmake)
endif()
if(WEFT_CLI)
  install(TARGETS weft_cli)
  if(WEFT_TORCH)
    install(TARGETS weft_train_cli)
  endif()
endif()
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
