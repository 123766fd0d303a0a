module @train_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<6xf32> {tf.aliasing_output = 1 : i32}, %arg2: tensor<i64> {tf.aliasing_output = 2 : i32}, %arg3: tensor<1x2xf32>, %arg4: tensor<1x1xf32>, %arg5: tensor<i32>) -> (tensor<3xf32>, tensor<6xf32>, tensor<i64>, tensor<1x3xui32>) {
    %c = stablehlo.constant dense<4294967295> : tensor<i64>
    %c_0 = stablehlo.constant dense<32> : tensor<i64>
    %c_1 = stablehlo.constant dense<1> : tensor<i64>
    %0 = stablehlo.reshape %arg3 : (tensor<1x2xf32>) -> tensor<2xf32>
    %1 = stablehlo.bitcast_convert %0 : (tensor<2xf32>) -> tensor<2xi32>
    %2 = stablehlo.slice %0 [0:1] : (tensor<2xf32>) -> tensor<1xf32>
    %3 = stablehlo.reshape %2 : (tensor<1xf32>) -> tensor<f32>
    %4 = stablehlo.slice %1 [1:2] : (tensor<2xi32>) -> tensor<1xi32>
    %5 = stablehlo.reshape %4 : (tensor<1xi32>) -> tensor<i32>
    %6 = stablehlo.add %arg2, %c_1 : tensor<i64>
    %7 = stablehlo.convert %5 : (tensor<i32>) -> tensor<f32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %9 = stablehlo.multiply %arg1, %8 : tensor<6xf32>
    %10 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %11 = stablehlo.multiply %10, %9 : tensor<6xf32>
    %12 = stablehlo.subtract %arg1, %11 : tensor<6xf32>
    %13 = stablehlo.shift_right_logical %6, %c_0 : tensor<i64>
    %14 = stablehlo.and %6, %c : tensor<i64>
    %15 = stablehlo.convert %13 : (tensor<i64>) -> tensor<ui32>
    %16 = stablehlo.reshape %15 : (tensor<ui32>) -> tensor<1xui32>
    %17 = stablehlo.convert %14 : (tensor<i64>) -> tensor<ui32>
    %18 = stablehlo.reshape %17 : (tensor<ui32>) -> tensor<1xui32>
    %19 = stablehlo.bitcast_convert %7 : (tensor<f32>) -> tensor<ui32>
    %20 = stablehlo.reshape %19 : (tensor<ui32>) -> tensor<1xui32>
    %21 = stablehlo.concatenate %16, %18, %20, dim = 0 : (tensor<1xui32>, tensor<1xui32>, tensor<1xui32>) -> tensor<3xui32>
    %22 = stablehlo.reshape %21 : (tensor<3xui32>) -> tensor<1x3xui32>
    return %arg0, %12, %6, %22 : tensor<3xf32>, tensor<6xf32>, tensor<i64>, tensor<1x3xui32>
  }
}
